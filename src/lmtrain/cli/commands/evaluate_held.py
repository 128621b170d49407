"""Score a run's held checkpoints one after another: `python -m lmtrain.cli.commands.evaluate_held RUN WORDS`.

callbacks.evaluate_aside starts this process. It starts `lmtrain evaluate` for each checkpoint, so that a killed
evaluation costs one try, and ends when no checkpoint is left.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.metric_names import EVALUATIONS
from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.atomic_files import file_lock
from lmtrain.tracking.held_checkpoints import FOLDER, LOCK, begin_scoring, put_back, release, step_of, waiting
from lmtrain.tracking.run_log import logged_points
from lmtrain.training.lifetime import die_with_parent

MOST_TRIES: Final = 2
ITS_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1"}


def evaluate_held(run: Path, words: Sequence[str]) -> int:
    """Score until no checkpoint waits; return 1 if one was given up."""
    code = 0
    try:
        while True:
            with file_lock(run / FOLDER / LOCK, wait_seconds=0.0):
                put_back(run)
                while places := waiting(run):
                    if place := begin_scoring(places[0]):
                        code |= not _score(run, place, words)
                        release(place)
            if not waiting(run):  # else another process has met this lock with a newer checkpoint
                return code
    except EnvironmentProblem:  # another process does it
        return code


def is_posted(run: Path, step: int) -> bool:
    """Report whether a run's curves have scores of a step."""
    found = (point.metrics for point in logged_points(run) if point.step == step)
    return any(name.startswith(EVALUATIONS) for metrics in found for name in metrics)


def _score(run: Path, place: Path, words: Sequence[str]) -> bool:
    """Score one checkpoint, again if that fails; return whether it has its scores."""
    step = step_of(place)
    for number in range(1, MOST_TRIES + 1):
        if is_posted(run, step):  # by a process killed before it let the checkpoint go
            return True
        code = subprocess.run(
            python_command("-m", "lmtrain.cli", "evaluate", str(place), *words),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env={**python_environment(), **ITS_ENVIRONMENT},
            preexec_fn=partial(die_with_parent, os.getpid()),  # an orphan would post what the next process posts too
            check=False,
        ).returncode
        if code == 0:
            return True
        print(f"step {step}: try {number} of {MOST_TRIES} ended with {code}", file=sys.stderr)
    print(f"step {step} is given up; run lmtrain evaluate on it to see why", file=sys.stderr)
    return False


def main() -> int:
    """Score the command line's run: its folder, and the words of `lmtrain evaluate`."""
    folder, *words = sys.argv[1:]
    os.nice(19)
    return evaluate_held(Path(folder), words)


if __name__ == "__main__":
    sys.exit(main())
