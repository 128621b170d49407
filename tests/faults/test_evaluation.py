"""kill -9 of a real evaluation beside a run, while it scores: done again, each score once, the run as if untouched."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lmtrain.tracking.held_checkpoints import held
from lmtrain.tracking.run_log import read_points
from tests import tiny

STEPS = 30
WORDS = [f"budget.steps={STEPS}", "callbacks.validation=null", "callbacks.text_samples=null"]
ASIDE = [
    "callbacks=[default,evaluate_aside]",
    "callbacks.evaluate_aside.every_steps=1",
    f"callbacks.checkpoint.every_steps={STEPS}",
]


def scoring(run: Path) -> int | None:
    """Return the process that has this run's held-out tokens before it, None where none has."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_evaluation = f"evaluate\0{run}".encode() in (process / "cmdline").read_bytes()
            if is_evaluation and "validation_00000.ds" in (process / "maps").read_text():
                return int(process.name)
        except OSError:  # it has ended
            continue
    return None


@pytest.mark.faults
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="it is looked for in /proc")
def test_an_evaluation_killed_while_it_scores_is_done_again_and_the_run_is_as_untouched(tmp_path: Path) -> None:
    run = tmp_path / "runs/a"
    words = [*WORDS, *ASIDE, "data.folder.num_tokens=2000000", "run.name=a"]
    training = subprocess.Popen(
        tiny.command(*words), cwd=tmp_path, env=tiny.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until, killed = time.monotonic() + 100, None
    while killed is None and not training.poll() and time.monotonic() < until:
        killed = scoring(run)
        time.sleep(0.01)
    assert killed is not None, f"no evaluation was seen to score; training: {training.poll()}"
    os.kill(killed, signal.SIGKILL)
    assert training.wait(100) == 0
    until = time.monotonic() + 100
    while held(run) and time.monotonic() < until:
        time.sleep(0.1)
    points = [*read_points(run / "metrics.jsonl")]
    scores = [point.step for point in points if "evaluation/validation/bits_per_byte" in point.metrics]
    assert sorted(scores) == [STEPS]
    assert "try 1 of 2 ended with -9" in (run / "evaluate_aside.log").read_text()
    untouched = tiny.train(tmp_path, *WORDS, "data.folder.num_tokens=2000000", "run.name=untouched")
    assert untouched.returncode == 0, untouched.stderr
    assert tiny.losses(run) == tiny.losses(tmp_path / "runs/untouched")
