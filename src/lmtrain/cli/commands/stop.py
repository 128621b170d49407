"""`lmtrain stop PATH`: stop runs or sweeps cleanly, with a checkpoint, from any machine that sees the folder."""

import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.report.runs.find import find_runs, names_sweep
from lmtrain.report.runs.listing import in_brief
from lmtrain.report.visible_text import visible
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.run_folder import ask_to_stop, is_asked_to_stop
from lmtrain.tracking.status import settled_status
from lmtrain.tracking.sweep_file import is_under_way, read_sweep

NOT_STOPPED: Final = 1
CONTINUES: Final = "the same command continues it"
POLL_SECONDS: Final = 0.2


def stop(words: list[str], *, program: str = "lmtrain stop") -> int:
    """Ask runs and sweeps to end, and wait for their ends.

    Returns 1 if one still runs after `--wait` seconds, or has ended without the requested checkpoint.
    """
    parser = FlagParser(prog=program, description="Stop runs after their step, each with a checkpoint; sweeps too.")
    parser.add_argument("run", type=Path, nargs="+", help="the run's folder, runs/NAME, or runs/sweep-ID of a sweep")
    parser.add_argument("--wait", type=float, default=120.0, metavar="SECONDS", help="for their ends (120)")
    asked = parser.parse_args(words)
    sweeps = [path.absolute() for path in asked.run if names_sweep(path.absolute())]
    runs = find_runs([path for path in asked.run if path.absolute() not in sweeps])
    for sweep in sweeps:
        _require_sweep(sweep)
    for run in runs:
        _require_running(run)
    for folder in (*sweeps, *runs):
        ask_to_stop(folder)
    return _wait_for([*sweeps, *runs], sweeps=sweeps, seconds=asked.wait)


def _wait_for(folders: list[Path], *, sweeps: list[Path], seconds: float) -> int:
    deadline, left, are_clean = time.monotonic() + seconds, [*folders], True
    while left and time.monotonic() < deadline:
        for folder in [*left]:
            if folder in sweeps and is_under_way(folder):
                _ask_runs(folder)
            elif folder in sweeps or not _is_running(folder):
                left.remove(folder)
                line, is_clean = _sweep_end(folder) if folder in sweeps else _run_end(folder)
                are_clean &= is_clean
                print(visible(line))
        time.sleep(POLL_SECONDS if left else 0)
    for folder in left:
        sys.stderr.write(f"{folder.name} still runs: it stops after its step; the first one comes after compiling\n")
    return NOT_STOPPED if left or not are_clean else EXIT_DONE


def _require_running(folder: Path) -> None:
    status = settled_status(folder)
    if status is None or status.status != "RUNNING":
        state = "not a run" if status is None else status.shown.lower()
        raise ConfigurationError(
            f"{folder} is not running: {state}; `lmtrain ls {shlex.quote(str(folder.parent))}` lists the runs."
        )


def _require_sweep(sweep: Path) -> None:
    if not sweep.exists():
        find_runs([sweep])
    read_sweep(sweep)  # refuses one of another version
    if not is_under_way(sweep):
        runs = shlex.join(["lmtrain", "ls", str(sweep)])
        raise ConfigurationError(f"{sweep} is not running: no process holds the sweep; `{runs}` lists its runs.")


def _ask_runs(sweep: Path) -> None:
    """Ask a sweep's runs too: a grid's trials one after another end with the stopped one."""
    with suppress(ConfigurationError):  # none has begun
        for folder in find_runs([sweep]):
            if _is_running(folder) and not is_asked_to_stop(folder):
                ask_to_stop(folder)


def _run_end(folder: Path) -> tuple[str, bool]:
    """Describe the end of a run; the second value is whether nothing trained is lost."""
    run = in_brief(folder)
    match run.status:
        case "STOPPED":
            return f"{run.name} stopped at step {run.step:,}; {CONTINUES}", True
        case "FINISHED":
            return f"{run.name} finished at step {run.step:,}, before it could be stopped", True
        case _:
            status = run.status.lower()
            return f"{run.name} {status} at step {run.step:,}, without a final checkpoint; {CONTINUES}", False


def _sweep_end(sweep: Path) -> tuple[str, bool]:
    found = read_sweep(sweep)
    states = [trial.state.replace("_", " ") for trial in (found.trials if found else [])]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if set(states) == {"finished"}:
        return f"{sweep.name} finished, before it could be stopped: trials {counts}", True
    return f"{sweep.name} stopped: trials {counts}; {CONTINUES}", True


def _is_running(folder: Path) -> bool:
    status = settled_status(folder)
    return status is not None and status.status == "RUNNING"
