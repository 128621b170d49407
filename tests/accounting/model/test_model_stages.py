"""The bubble and the memory of schedules, held to a step laid out slot by slot."""

import pytest

from lmtrain.accounting.model.memory import Pipeline
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(("num_stages", "num_micro_steps"), [(2, 1), (4, 8), (8, 16), (1, 5)])
def test_bubble_is_that_of_a_forward_pass_through_the_stages(num_stages: int, num_micro_steps: int) -> None:
    ends = [[0] * num_micro_steps for _ in range(num_stages)]
    for stage in range(num_stages):
        for micro in range(num_micro_steps):
            received = ends[stage - 1][micro] if stage else 0
            ends[stage][micro] = max(received, ends[stage][micro - 1] if micro else 0) + 1
    last = ends[-1][-1]
    idle = (last - num_micro_steps) / last
    assert Pipeline(num_stages=num_stages).bubble_share(num_micro_steps) == pytest.approx(idle)


def test_gpipe_keeps_every_micro_batch_and_1f1b_as_many_as_stages() -> None:
    assert Pipeline(num_stages=4, schedule="gpipe").kept_share(16) == 4
    assert Pipeline(num_stages=4).kept_share(16) == 1
    assert Pipeline(num_stages=4).kept_share(2) == 0.5


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_each_stage_keeps_the_micro_batches_of_a_schedule_laid_out_pass_by_pass(num_chunks: int) -> None:
    stages, pipeline = 4, Pipeline(num_stages=4, num_chunks=num_chunks)
    for stage in range(stages):
        later = stages - 1 - stage
        passes = later if num_chunks == 1 else 2 * later + (num_chunks - 1) * stages  # before the first backward pass
        assert pipeline.kept_share(16, stage=stage) == pytest.approx((passes + 1) / num_chunks / stages)


def test_more_parts_than_layers_are_refused_with_stages_that_divide_the_ranks() -> None:
    for num_chunks, nearest in ((2, "pipeline_size=2"), (5, "pipeline_size=1")):
        with pytest.raises(ConfigurationError, match=rf"Did you mean strategy\.{nearest}"):
            Pipeline(num_stages=8, num_chunks=num_chunks).require_layers(6)
    with pytest.raises(ConfigurationError, match=r"Did you mean strategy\.num_chunks=3"):
        Pipeline(num_stages=2, num_chunks=4).require_layers(6)
