"""Both trainings of a comparison, with forked ranks in place of started ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lmtrain.accounting.observed.parity_checks import RankDifference
from lmtrain.run.execution import parity_run
from lmtrain.run.execution.parity_run import compare, on_rank
from lmtrain.run.planning.parity_configs import pair_of
from lmtrain.run.stored_runs.job import Job
from lmtrain.training.module import CausalLMModule
from tests.ranks import on_ranks

WORDS = [
    "trainer.devices=2",
    "batch.micro_batch_sequences=1",
    "gradient_clip_norm=0.1",
    "model.num_heads=2",
    "tokenizer.vocab_size=301",
]


def as_it_is(rank: int, path: str) -> None:
    assert on_rank(Path(path)) == 0


def with_a_fault_on_rank_1(rank: int, path: str) -> None:
    """Move one weight of rank 1 after its second step."""
    step = CausalLMModule.optimizer_step

    def faulty(self: CausalLMModule, *arguments, **settings) -> None:
        step(self, *arguments, **settings)
        if rank == 1 and self.trainer.global_step == 1:
            with torch.no_grad():
                self.language_model.get_parameter("final_norm.weight")[3] += 0.25

    CausalLMModule.optimizer_step = faulty  # pyright: ignore[reportAttributeAccessIssue]
    as_it_is(rank, path)


@pytest.fixture
def compared(
    tmp_path: Path, tiny_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[RankDifference, ...]]:
    """Compare a tiny config on two forked ranks, each running a function of these."""

    def run(strategy: str, on_a_rank: Callable[[int, str], None] = as_it_is) -> tuple[RankDifference, ...]:
        def launch(path: Path, *, num_processes: int, **_: object) -> int:
            if num_processes == 1:
                return on_rank(path)
            on_ranks(on_a_rank, str(path), folder=tmp_path, num_ranks=num_processes)
            return 0

        monkeypatch.setattr(parity_run, "launch", launch)
        job = tiny_job(*WORDS, f"strategy={strategy}")
        pair = pair_of(job.config, num_steps=2)
        jobs = [
            Job(config=config, overrides=[], name=name, root=str(tmp_path / strategy))
            for name, config in (("alone", pair.alone), ("together", pair.together))
        ]
        return compare([(jobs[0], jobs[1])], num_steps=2, tolerance=1e-4)[0]

    return run


@pytest.mark.distributed
def test_every_number_and_tensor_of_two_ranks_is_compared_and_equal(compared) -> None:
    found = compared("tensor")
    assert not [each for each in found if each.ranks]
    kinds = {kind: {each.step for each in found if each.kind == kind} for kind in {each.kind for each in found}}
    assert kinds == {
        "tokens": {1, 2},
        "loss": {1, 2},
        "gradient": {1, 2},
        "gradient norm": {1, 2},
        "weight": {0, 1, 2},
    }
    assert max(each.relative for each in found if each.kind == "gradient") > 0, "sums of another order round otherwise"


@pytest.mark.distributed
def test_a_planted_fault_is_found_with_its_step_tensor_and_rank(compared) -> None:
    found = compared("ddp", with_a_fault_on_rank_1)
    first = next(each for each in found if each.ranks)
    assert (first.step, first.kind, first.name, list(first.ranks)) == (2, "weight", "final_norm.weight", [1])
    assert first.largest == pytest.approx(0.25, rel=0.2)
