"""Be one run of a sweep: `python -m lmtrain.run.sweeps.trial_process`, started by its runner.

Its ranks are a separate process group below it, and read the job that the sweep's process has composed.
"""

import argparse
import sys
from pathlib import Path

from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.run.execution.start import start
from lmtrain.run.stored_runs.job import job_of_rank
from lmtrain.tracking.redaction import redact_text
from lmtrain.training.lifetime import die_with_parent


def main() -> int:
    """Train the command line's job and return its exit code."""
    parser = argparse.ArgumentParser(prog="lmtrain.run.sweeps.trial_process")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("job", type=Path)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    return run_trial(arguments.job)


def run_trial(job_path: Path) -> int:
    """Train a saved job on its own ranks; the message of a refusal goes to a file next to it."""
    refusal = refusal_path(job_path)
    refusal.unlink(missing_ok=True)
    try:
        return start(job_of_rank(job_path).begun_now(), outer=None, isolated=True)
    except LMTRAIN_ERRORS as error:
        message = redact_text(str(error))
        refusal.write_text(message)
        print(message, file=sys.stderr)
        return error.exit_code


def refusal_path(job_path: Path) -> Path:
    """Return the file for the message of a refused job."""
    return job_path.with_suffix(".refusal.txt")


if __name__ == "__main__":
    sys.exit(main())
