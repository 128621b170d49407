"""A gradient that is no number on one rank alone: both ranks skip the step, or both stop, and none waits."""

from pathlib import Path

import pytest

from tests import tiny

WORDS = ["budget.steps=6", "trainer.devices=2", "strategy=ddp", "run.name=a", "--allow-target", "tests."]
BREAK = "+callbacks.x={_target_: tests.faults.kill_at.BreakGradientAt, step: 3, rank: 1, is_infinite: %s}"


@pytest.mark.faults
@pytest.mark.distributed
def test_a_gradient_that_is_no_number_on_one_rank_is_skipped_or_stops_both(tmp_path: Path) -> None:
    skipped = tiny.train(tmp_path, *WORDS, "spikes=skip", BREAK % "true", num_ranks=2)
    assert skipped.returncode == 0, skipped.stderr
    assert [*tiny.losses(tmp_path / "runs/a")] == [1, 2, 3, 4, 5, 6]
    assert "1 step skipped as spikes" in skipped.stdout
    stopped = tiny.train(tmp_path, *WORDS, "run.name=b", BREAK % "false", num_ranks=2)
    assert stopped.returncode == 3, stopped.stderr
    assert "Step 4 has loss" in stopped.stderr
