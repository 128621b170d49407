"""Score a run's held checkpoints one after another: `python -m lmtrain.cli.commands.evaluate_held RUN TRAINER WORDS`.

callbacks.evaluate_aside starts this process. It starts `lmtrain evaluate` for each checkpoint, so that a killed
evaluation costs one try, and ends when no checkpoint is left or the run is killed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.metric_names import EVALUATIONS
from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.atomic_files import file_lock
from lmtrain.tracking.held_checkpoints import FOLDER, LOCK, claim, release, step_of, unclaim, waiting
from lmtrain.tracking.run_log import logged_points
from lmtrain.tracking.status import read_status
from lmtrain.training.lifetime import die_with_parent

MOST_TRIES: Final = 2
POLL_SECONDS: Final = 0.2
ITS_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1"}


def evaluate_held(run: Path, words: Sequence[str], *, trainer: int) -> int:
    """Score until no checkpoint waits; return 1 if one was given up, or the run was killed.

    `trainer` is the run's process.
    """
    codes = [0]
    try:
        while True:
            with file_lock(run / FOLDER / LOCK, wait_seconds=0.0):
                unclaim(run)
                while places := waiting(run):
                    if not claim(places[0]):
                        continue
                    outcome = _score(run, places[0], words, trainer=trainer)
                    if outcome is None:
                        return 1
                    codes.append(0 if outcome else 1)
                    release(places[0])
            if not waiting(run):  # else another process has met this lock with a newer checkpoint
                return max(codes)
    except EnvironmentProblem:  # another process does it
        return max(codes)


def is_posted(run: Path, step: int) -> bool:
    """Report whether a run's curves have scores of a step."""
    found = (point.metrics for point in logged_points(run) if point.step == step)
    return any(name.startswith(EVALUATIONS) for metrics in found for name in metrics)


def _score(run: Path, place: Path, words: Sequence[str], *, trainer: int) -> bool | None:
    """Score one checkpoint, again if that fails; None if the run was killed meanwhile, False if given up."""
    for number in range(1, MOST_TRIES + 1):
        if is_posted(run, step_of(place)):  # by a process killed before it let the checkpoint go
            return True
        process = subprocess.Popen(
            python_command("-m", "lmtrain.cli", "evaluate", str(place), *words),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env={**python_environment(), **ITS_ENVIRONMENT},
            preexec_fn=partial(die_with_parent, os.getpid()),  # an orphan would post what the next process posts too
        )
        while process.poll() is None:
            if _was_killed(run, trainer):
                process.kill()
                process.wait()
                return None
            time.sleep(POLL_SECONDS)
        if process.returncode == 0:
            return True
        print(f"step {step_of(place)}: try {number} of {MOST_TRIES} ended with {process.returncode}", file=sys.stderr)
    print(f"step {step_of(place)} is given up; run lmtrain evaluate on it to see why", file=sys.stderr)
    return False


def _was_killed(run: Path, trainer: int) -> bool:
    status = read_status(run)
    return os.getppid() != trainer and status is not None and status.status == "RUNNING"


def main() -> int:
    """Score the command line's run: its folder, the trainer's process, and the words of `lmtrain evaluate`."""
    folder, trainer, *words = sys.argv[1:]
    os.nice(19)
    return evaluate_held(Path(folder), words, trainer=int(trainer))


if __name__ == "__main__":
    sys.exit(main())
