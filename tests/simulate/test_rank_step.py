"""A simulated step held to the same step of real gloo ranks: every message, and the most bytes at once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lmtrain.accounting.training_plan.simulated_step import Message, repeated
from lmtrain.simulate.rank_step import record_step
from tests.ranks import on_ranks
from tests.simulate.real_step import simulated, train

CASES = {4: ["fsdp", "tensor", "hsdp+recomputes", "fsdp_tensor", "context"]}
MEMORY = 0.05  # of the real ranks' peak
SMALL = 2000  # bytes: tokens, and sums for the log


@pytest.fixture(scope="module", params=CASES)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[dict[str, Any]]]:
    """Train all cases of a number of ranks on gloo."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    on_ranks(train, str(folder), *CASES[request.param], folder=folder, num_ranks=request.param)
    return request.param, json.loads((folder / "found.json").read_text())


@pytest.mark.distributed
def test_messages_and_memory_are_those_of_real_ranks(found: tuple[int, list[dict[str, Any]]]) -> None:
    num_ranks, real = found
    for case, truth in zip(CASES[num_ranks], real, strict=True):
        word, _, recomputes = case.partition("+")
        step = record_step(simulated(word, num_ranks=num_ranks, recomputes=bool(recomputes)), num_blocks=3)
        events = repeated([one.events for one in step.micro_steps], step.end.events, num_micro_steps=2)
        sent = Counter(
            (one.kind, one.num_ranks, one.num_bytes, one.stride) for one in events if isinstance(one, Message)
        )
        assert sent == Counter(tuple(each) for each in truth["sent"]), case
        peaks = [sum(peak.values()) for part in [*step.micro_steps, step.end] for peak in part.peaks.values()]
        assert max(peaks) == pytest.approx(truth["peak"], rel=MEMORY), case
        at_step = step.end.peaks["step"]
        assert at_step["activations"] < SMALL, case
        assert at_step["gathered weights"] == 0, case
