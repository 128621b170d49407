"""A sweep: every trial is checked before the first trains; then one after another, and a stop from outside ends it."""

import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lmtrain.errors import (
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    EXIT_TERMINATED,
    LMTRAIN_ERRORS,
    ConfigurationError,
    EnvironmentProblem,
    retold,
)
from lmtrain.run.execution.grid_record import GridRecord, grid_folder
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.redaction import redact_text
from lmtrain.tracking.run_folder import forget_stop, is_asked_to_stop
from lmtrain.tracking.status import status_name
from lmtrain.training.stopping import EXIT_CODES, StoppedEarly, heard_signals

STOPPED: Final = frozenset({EXIT_INTERRUPTED, EXIT_REQUEUE, EXIT_TERMINATED})  # meant for the sweep, not for its trial
NOT_STARTED: Final = -1


def swept_keys(trials: Iterable[Sequence[str]]) -> frozenset[str]:
    """Return the keys with several values among the overrides of a sweep's trials."""
    words = {word for trial in trials for word in trial}
    keys = [word.lstrip("+~").partition("=")[0] for word in words]
    return frozenset(key for key in keys if keys.count(key) > 1)


@contextmanager
def naming_trial(trials: Sequence[Sequence[str]], number: int) -> Generator[None]:
    """Name a refusal's trial by its number from 0 and its overrides: before any is started."""
    try:
        yield
    except (ConfigurationError, EnvironmentProblem) as refusal:
        where = f"trial {number + 1} of {len(trials)} ({' '.join(trials[number])})"
        raise retold(refusal, f"{refusal} This is {where}; no trial was started.") from refusal


def one_after_another(trials: Sequence[Job], start: Callable[[Job], int]) -> Generator[tuple[Job, int]]:
    """Train the trials; yield each with its exit code, no more after a stop or the wish for one.

    Raises: KeyboardInterrupt for a wish between two trials, as Ctrl-C there; StoppedEarly for a signal too late to stop
    the trial that it came in.
    """
    for trial in trials:
        if is_asked_to_stop(grid_folder(trial)):  # lmtrain stop
            forget_stop(grid_folder(trial))
            raise KeyboardInterrupt
        with heard_signals() as heard:
            code = _outcome(trial, start)
            signals = heard()
        yield trial, code
        if code in STOPPED:
            break
        if signals and trial is not trials[-1]:
            raise StoppedEarly(signals[0])


def run_sweep(trials: Sequence[Job], ends: Iterable[tuple[Job, int]]) -> int:
    """Train the trials, as `ends` does, and return the worst exit code, or a stop's; name each outcome at the end."""
    outcomes = dict.fromkeys((trial.name for trial in trials), NOT_STARTED)
    record = GridRecord(trials)
    record.begin()
    code = EXIT_INTERRUPTED  # of Ctrl-C between two trials
    try:
        for trial, outcome in ends:
            outcomes[trial.name] = outcome
            record.close(trial, outcome)
    except StoppedEarly as stop:
        code = EXIT_CODES[stop.number]
    else:
        code = next((outcome for outcome in outcomes.values() if outcome in STOPPED), max(outcomes.values()))
    finally:
        record.end(status_name(code))
        unchanged = (NOT_STARTED, *STOPPED)
        print_outcomes(
            {name: 0 if each in unchanged and record.is_finished(name) else each for name, each in outcomes.items()}
        )
        if record.unranked:
            print(f"  {record.unranked}")
        last = trials[-1]
        shown = shlex.quote(f"{last.config.run.root}/{grid_folder(last).relative_to(last.root)}")
        print(f"  side by side: lmtrain compare {shown}")
        print(f"  as a page: lmtrain report {shown}")
        logger = last.config.logger.build()
        logger.finish_sweep(Path(last.root), last.sweep, status=status_name(code))
    return code


def print_outcomes(outcomes: dict[str, int]) -> None:
    """Print one line a trial: its name and its end."""
    width = max(map(len, outcomes))
    for name, code in outcomes.items():
        print(f"  {name:<{width}}  {_ending(code)}")


def _ending(code: int) -> str:
    if code == NOT_STARTED:
        return "not started"
    if code in STOPPED:
        return f"stopped, exit code {code}; the same command goes on"
    return "done" if code == 0 else f"failed, exit code {code}"


def _outcome(trial: Job, start: Callable[[Job], int]) -> int:
    try:  # a failing trial does not end the sweep
        return start(trial.begun_now())  # its seconds are not those of the trials before it
    except LMTRAIN_ERRORS as error:
        print(redact_text(f"{trial.name}: {error}"), file=sys.stderr)
        return error.exit_code
