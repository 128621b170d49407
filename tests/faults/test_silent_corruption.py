"""A rank that computes wrongly, and one whose memory flips a bit: both are named, and nothing is saved after them."""

from pathlib import Path

import pytest

from tests import tiny

WORDS = ["budget.steps=8", "trainer.devices=2", "callbacks.checkpoint.every_steps=2", "--allow-target", "tests."]


@pytest.mark.faults
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("option", "fault", "named"),
    [
        ("health.recompute_every_steps=4", "MiscomputeAt", "computed twice, gave different results on rank 1 ("),
        ("health.compare_replicas_every_steps=4", "FlipBitAt", "the copies of head.weight differ on ranks 0 ("),
    ],
)
def test_a_rank_that_is_wrong_without_an_error_is_named(option: str, fault: str, named: str, tmp_path: Path) -> None:
    words = [*WORDS, "strategy=ddp", option, "run.name=a"]
    wrong = tiny.train(
        tmp_path, *words, f"+callbacks.x={{_target_: tests.faults.kill_at.{fault}, step: 3, rank: 1}}", num_ranks=2
    )
    assert wrong.returncode == 3, wrong.stderr
    assert "Step 4: " in wrong.stderr
    assert named in wrong.stderr
    assert sorted(path.name for path in (tmp_path / "runs/a/checkpoints").iterdir()) == ["step_00000002"]
