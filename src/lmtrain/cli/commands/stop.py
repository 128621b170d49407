"""`lmtrain stop PATH`: a clean stop of a run or a sweep with a checkpoint, from any machine with its folder."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.report.runs.find import find_runs
from lmtrain.report.runs.listing import in_brief
from lmtrain.report.runs.nearest import names_sweep
from lmtrain.report.visible_text import visible
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.held_sweep import is_under_way
from lmtrain.tracking.settled_status import settled_status
from lmtrain.tracking.stop_request import ask_to_stop, is_asked_to_stop
from lmtrain.tracking.sweep_file import read_sweep

NOT_STOPPED: Final = 1
GOES_ON: Final = "the command that started it goes on from there"
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class StopEnd:
    """The end of a run or a sweep: a line, and whether nothing trained is lost."""

    line: str
    is_clean: bool = True


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """A run or a sweep asked to stop: whether it has ended, and how."""

    name: str
    has_ended: Callable[[], bool]
    end: Callable[[], StopEnd]


def stop(words: list[str], *, program: str = "lmtrain stop") -> int:
    """Ask runs and sweeps to end, and wait for their ends.

    1 where one still goes on after `--wait` seconds, or has ended without the checkpoint asked for.

    Raises:
        ConfigurationError: One is not under way.
    """
    parser = FlagParser(prog=program, description="Stop runs after their step, each with a checkpoint; sweeps too.")
    parser.add_argument("run", type=Path, nargs="+", help="the run's folder, runs/NAME, or runs/sweep-ID of a sweep")
    parser.add_argument("--wait", type=float, default=120.0, metavar="SECONDS", help="for their ends (120)")
    asked = parser.parse_args(words)
    sweeps = [path.absolute() for path in asked.run if names_sweep(path.absolute())]
    folders = find_runs([path for path in asked.run if path.absolute() not in sweeps])
    for sweep in sweeps:
        _require_sweep(sweep)
    for folder in folders:
        _require_running(folder)
    stopping = [*map(_ask_sweep, sweeps), *map(_ask_run, folders)]
    return _wait_for(stopping, seconds=asked.wait)


def _wait_for(stopping: Sequence[Stopping], *, seconds: float) -> int:
    deadline, left, are_clean = time.monotonic() + seconds, [*stopping], True
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        for each in [each for each in left if each.has_ended()]:
            left.remove(each)
            end = each.end()
            are_clean &= end.is_clean
            print(visible(end.line))
    for each in left:
        sys.stderr.write(f"{each.name} goes on: it stops after its step, the first one once it has compiled\n")
    return NOT_STOPPED if left or not are_clean else EXIT_DONE


def _require_running(folder: Path) -> None:
    status = settled_status(folder)
    if status is None or status.status != "RUNNING":
        state = "not a run" if status is None else status.shown.lower()
        raise ConfigurationError(
            f"{folder} is not under way: {state}; `lmtrain ls {shlex.quote(str(folder.parent))}` lists the runs."
        )


def _require_sweep(sweep: Path) -> None:
    if not sweep.exists():
        find_runs([sweep])
    read_sweep(sweep)  # refuses one of another version
    if not is_under_way(sweep):
        runs = shlex.join(["lmtrain", "ls", str(sweep)])
        raise ConfigurationError(f"{sweep} is not under way: no process holds the sweep; `{runs}` lists its runs.")


def _ask_run(folder: Path) -> Stopping:
    ask_to_stop(folder)
    return Stopping(name=folder.name, has_ended=lambda: not _is_running(folder), end=lambda: _run_end(folder))


def _run_end(folder: Path) -> StopEnd:
    """Tell a stop from the end that came before it."""
    run = in_brief(folder)
    match run.status:
        case "STOPPED":
            return StopEnd(f"{run.name} stopped at step {run.step:,}; {GOES_ON}")
        case "FINISHED":
            return StopEnd(f"{run.name} finished at step {run.step:,}, before it could be stopped")
        case _:
            ended = f"{run.name} {run.status.lower()} at step {run.step:,}, without a checkpoint of its stop"
            return StopEnd(f"{ended}; the command that started it goes on from its newest one", is_clean=False)


def _ask_sweep(sweep: Path) -> Stopping:
    """Ask a sweep's process, and its runs too: a grid's trials one after another end with the stopped one."""
    ask_to_stop(sweep)
    _ask_runs(sweep)
    return Stopping(name=sweep.name, has_ended=lambda: _has_ended(sweep), end=lambda: _sweep_end(sweep))


def _ask_runs(sweep: Path) -> None:
    with suppress(ConfigurationError):  # none has begun
        for folder in find_runs([sweep]):
            if _is_running(folder) and not is_asked_to_stop(folder):
                ask_to_stop(folder)


def _has_ended(sweep: Path) -> bool:
    """Tell whether no process holds a sweep; runs begun since then are asked."""
    if is_under_way(sweep):
        _ask_runs(sweep)
        return False
    return True


def _sweep_end(sweep: Path) -> StopEnd:
    found = read_sweep(sweep)
    states = [trial.state.replace("_", " ") for trial in (found.trials if found else [])]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if set(states) == {"finished"}:
        return StopEnd(f"{sweep.name} finished, before it could be stopped: trials {counts}")
    return StopEnd(f"{sweep.name} stopped: trials {counts}; {GOES_ON}")


def _is_running(folder: Path) -> bool:
    status = settled_status(folder)
    return status is not None and status.status == "RUNNING"
