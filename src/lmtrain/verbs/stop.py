"""`lmtrain stop RUN`: a clean stop with a checkpoint, from any machine with the run's folder."""

import sys
import time
from pathlib import Path
from typing import Final

from lmtrain.composition.command_line.flag_parser import FlagParser
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.report.find_runs import find_runs
from lmtrain.report.markup import visible
from lmtrain.report.run_list import in_brief
from lmtrain.tracking.settled_status import settled_status
from lmtrain.tracking.stop_request import ask_to_stop

STILL_RUNNING: Final = 1
POLL_SECONDS: Final = 0.2


def stop(words: list[str], *, program: str = "lmtrain stop") -> int:
    """Ask runs to end after their step, and wait for their ends; 1 where one still goes on after `--wait` seconds.

    Raises:
        ConfigurationError: A run is not under way.
    """
    parser = FlagParser(prog=program, description="Stop runs after their step, each with a checkpoint.")
    parser.add_argument("run", type=Path, nargs="+", help="the run's folder: runs/NAME")
    parser.add_argument("--wait", type=float, default=120.0, metavar="SECONDS", help="for their ends (120)")
    asked = parser.parse_args(words)
    folders = find_runs(asked.run)
    for folder in folders:
        status = settled_status(folder)
        if status is None or status.status != "RUNNING":
            state = "not a run" if status is None else status.shown.lower()
            raise ConfigurationError(
                f"{folder} is not under way: {state}; `lmtrain ls {folder.parent}` lists the runs."
            )
    for folder in folders:
        ask_to_stop(folder)
    deadline, left = time.monotonic() + asked.wait, folders
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        for folder in [each for each in left if _has_ended(each)]:
            left = [each for each in left if each != folder]
            run = in_brief(folder)
            print(f"{visible(run.name)} stopped at step {run.step:,}; the command that started it goes on from there")
    for folder in left:
        sys.stderr.write(f"{folder.name} goes on: it stops after its step, the first one once it has compiled\n")
    return STILL_RUNNING if left else EXIT_DONE


def _has_ended(folder: Path) -> bool:
    status = settled_status(folder)
    return status is None or status.status != "RUNNING"
