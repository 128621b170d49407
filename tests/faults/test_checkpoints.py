"""kill -9 of a trainer while a thread writes its checkpoint: an older one is whole, and nothing else is left."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import tiny
from tests.faults.test_resume import killed

# Every checkpoint but the last is written by a thread, however small it is.
WORDS = ["budget.steps=9", "callbacks.checkpoint.every_steps=3", "callbacks.checkpoint.background_from_bytes=0"]


@pytest.mark.faults
def test_a_run_killed_while_its_checkpoint_is_written_goes_on_bit_for_bit(tmp_path: Path) -> None:
    in_place = [*WORDS[:2], "callbacks.checkpoint.background_from_bytes=null", "run.name=in_place"]
    untouched = tiny.train(tmp_path, *in_place)
    assert untouched.returncode == 0, untouched.stderr
    words = [*WORDS, "run.name=a", *killed(6)]  # step 6 has just been handed over
    assert tiny.train(tmp_path, *words).returncode == -9
    checkpoints = tmp_path / "runs/a/checkpoints"
    (checkpoints / ".step_00000006.tmp").mkdir(exist_ok=True)  # where the kill came before the first byte
    again = tiny.train(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert tiny.losses(tmp_path / "runs/a") == tiny.losses(tmp_path / "runs/in_place")
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step_00000006", "step_00000009"]


@pytest.mark.faults
def test_a_stop_by_signal_leaves_its_step_and_the_one_in_flight(tmp_path: Path) -> None:
    words = [*WORDS[1:], "budget.steps=100000", "run.name=a", "callbacks.checkpoint.keep_last=300"]
    command = tiny.command(*words)
    run = subprocess.Popen(command, cwd=tmp_path, env=tiny.environment(), stderr=subprocess.PIPE, text=True)
    checkpoints = tmp_path / "runs/a/checkpoints"
    try:
        deadline = time.monotonic() + 120
        while len(list(checkpoints.glob("step_*"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(run.pid, signal.SIGTERM)
        _, told = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 143, told
    steps = sorted(int(path.name.removeprefix("step_")) for path in checkpoints.iterdir())
    last = int(told.split("stopping after step ")[1].split(";")[0].replace(",", ""))
    assert steps == [*range(3, last + 1, 3), *([last] if last % 3 else [])]
