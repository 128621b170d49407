"""A run that is killed goes on bit for bit also where an optimizer is saved otherwise than it trains."""

from pathlib import Path

import pytest

from tests import tiny
from tests.faults.test_resume import killed

WORDS = ["budget.steps=8", "callbacks.checkpoint.every_steps=3", "batch.micro_batch_sequences=2"]
# test_resume.py trains with Muon. These two keep weights or state otherwise while they train than when they are saved.
CHOICES = [["optimizer=adamw", "optimizer.moments=bf16"]]
# A sharded root keeps what validation gathered, of weights that are elsewhere when training goes on.
SHARDED = ["optimizer=schedule_free", "strategy=fsdp", "trainer.devices=2"]


@pytest.mark.faults
@pytest.mark.parametrize("choice", [*CHOICES, pytest.param(SHARDED, marks=pytest.mark.distributed)], ids=" ".join)
def test_killed_and_resumed_equals_untouched(choice: list[str], tmp_path: Path) -> None:
    words, num_ranks = [*WORDS, *choice], 2 if choice == SHARDED else 1
    untouched = tiny.train(tmp_path, *words, "run.name=untouched", num_ranks=num_ranks)
    assert untouched.returncode == 0, untouched.stderr
    stopped = tiny.train(tmp_path, *words, "run.name=a", *killed(5, 1), num_ranks=num_ranks)
    assert stopped.returncode == -9, stopped.stderr
    again = tiny.train(tmp_path, *words, "run.name=a", num_ranks=num_ranks)
    assert again.returncode == 0, again.stderr
    assert tiny.losses(tmp_path / "runs/a") == tiny.losses(tmp_path / "runs/untouched")
