"""A real disk that is full to its last byte, for a while or to the end: a file system of 100 MB in memory."""

from pathlib import Path

import pytest

from lmtrain.storage.hashed_folder import damage
from lmtrain.training.checkpointing.checkpoints import list_checkpoints
from tests import forked, tiny
from tests.small_disk import reason_for_none

WORDS = ["budget.steps=12", "callbacks.checkpoint.every_steps=2", "callbacks.checkpoint.keep_last=100", "run.name=a"]
FILL = "+callbacks.fill={_target_: tests.faults.kill_at.FillDiskAt, step: 5, until: %d}"
NUM_BYTES = 100 << 20


@pytest.mark.faults
@pytest.mark.parametrize("until", [9, 99])
def test_a_disk_full_to_its_last_byte_costs_no_step(until: int, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if reason := reason_for_none(disk):
        pytest.skip(reason)
    script = tiny.PROJECT / "tests/faults/on_small_disk.py"
    words = [str(NUM_BYTES), *tiny.TINY, *WORDS, "--allow-target", "tests.", FILL % until]
    full = forked.run(script, words, folder=disk, environment=tiny.environment())
    assert "NO CHECKPOINT (failure 1; the run ends at 3)" in full.stderr
    assert "No space left on device" in full.stderr
    run = tmp_path / "kept/runs/a"
    saved = [checkpoint.step for checkpoint in list_checkpoints(run / "checkpoints")]
    if until < 12:
        assert (full.returncode, saved) == (0, [2, 4, 10, 12]), full.stderr
    else:
        assert (full.returncode, saved) == (3, [2, 4]), full.stderr
        (tmp_path / "kept/runs/filler").unlink()
        again = tiny.train(tmp_path / "kept", *WORDS)
        assert again.returncode == 0, again.stderr
    assert [damage(path) for path in (run / "checkpoints").glob("step_*") if damage(path)] == []
    untouched = tiny.train(tmp_path, *WORDS)
    assert untouched.returncode == 0, untouched.stderr
    assert tiny.losses(run) == tiny.losses(tmp_path / "runs/a")
