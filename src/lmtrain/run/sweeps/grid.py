"""A grid of trials, from -m without a search: one after another, or several at once; recorded in sweep.json.

The file is in runs/NAME with run.name=NAME, else in runs/sweep-ID next to the runs. All trials are checked before the
first one trains.
"""

import os
import shlex
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    EXIT_TERMINATED,
    LMTRAIN_ERRORS,
    ConfigurationError,
)
from lmtrain.report.runs.held_out import why_unranked
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.outcome import Outcome, outcome_of
from lmtrain.run.sweeps.pool import Pool
from lmtrain.run.sweeps.search_lines import SearchLines
from lmtrain.tracking.redaction import redact_override, redact_text
from lmtrain.tracking.run_folder import forget_stop, is_asked_to_stop
from lmtrain.tracking.status import read_status, status_name
from lmtrain.tracking.sweep_file import ENDED, SweepFile, SweepRun, SweepTrial, read_sweep
from lmtrain.training.stopping import EXIT_CODES, StoppedEarly, heard_signals

STOPPED: Final = frozenset({EXIT_INTERRUPTED, EXIT_REQUEUE, EXIT_TERMINATED})  # meant for the sweep, not for its trial


def grid_folder(trial: Job) -> Path:
    """Return the folder of a grid's sweep.json, jobs and consoles."""
    return Path(trial.root) / (trial.config.run.name or str(trial.sweep))


def require_grid(folder: Path) -> SweepFile | None:
    """Return the grid in a folder, None if it is empty.

    Raises:
        ConfigurationError: It is a search.
        DataError: It is of another version.
    """
    found = read_sweep(folder)
    if found is not None and found.kind != "grid":
        raise ConfigurationError(f"{folder} is a search; give the grid another run.name.")
    return found


def one_after_another(trials: Sequence[Job], start: Callable[[Job], int]) -> Generator[tuple[Job, int]]:
    """Train the trials; yield each with its exit code, and none after a stop or a request for one.

    Raises: KeyboardInterrupt for a request between two trials, like Ctrl-C there; StoppedEarly for a signal that came
    too late to stop its trial.
    """
    for trial in trials:
        if is_asked_to_stop(grid_folder(trial)):  # lmtrain stop
            forget_stop(grid_folder(trial))
            raise KeyboardInterrupt
        with heard_signals() as heard:
            try:  # a failing trial does not end the sweep
                code = start(trial.begun_now())
            except LMTRAIN_ERRORS as error:
                print(redact_text(f"{trial.name}: {error}"), file=sys.stderr)
                code = error.exit_code
            signals = heard()
        yield trial, code
        if code in STOPPED:
            break
        if signals and trial is not trials[-1]:
            raise StoppedEarly(signals[0])


def side_by_side(trials: Sequence[Job], pool: Pool) -> Generator[tuple[Job, int]]:
    """Train the trials in a pool; yield each with its exit code, as they end.

    A signal, or a stop request in the folder, stops those that run, and no more begin.
    """
    waiting = deque(trials)
    with pool.open():
        while pool.running or (waiting and not pool.stopped_by):
            while waiting and pool.has_room:
                started = pool.start(waiting.popleft())
                print(f"{started.job.name}: started, its console is {started.process.console}", flush=True)
            for ended, code in pool.ended():
                print(f"{ended.job.name}: ended with exit code {code}", flush=True)
                yield ended.job, code


class GridRecord:
    """The trials of a grid in their order, then those of earlier grids of its name; each run's end updates the file.

    A trial of an earlier start keeps its state until it ends again.

    Raises:
        ConfigurationError: The name is that of a search.
        DataError: The folder is of another version.
    """

    def __init__(self, trials: Sequence[Job]) -> None:
        self._folder = grid_folder(trials[0])
        found = require_grid(self._folder)
        earlier = {trial.runs[0].folder: trial for trial in (found.trials if found else [])}
        shared = set(trials[0].overrides).intersection(*(trial.overrides for trial in trials))
        self._records: dict[str, SweepTrial] = {}
        for number, trial in enumerate(trials):
            run = SweepRun(folder=os.path.relpath(trial.folder, self._folder), seed=trial.config.seed)
            known = earlier.pop(run.folder, None)
            if known is None or trial.config.resume == "never" or not trial.folder.exists():
                known = SweepTrial(number=number, values={}, runs=[run])
            words = [redact_override(word).lstrip("+") for word in trial.overrides if word not in shared]
            pairs = (word.partition("=") for word in words)
            values = {key: value for key, _, value in pairs}
            self._records[trial.name] = replace(known, number=number, values=values)
        others = [replace(each, number=len(trials) + index) for index, each in enumerate(earlier.values())]
        fixed = [*trials[0].kept_flags, *(redact_override(word) for word in trials[0].overrides if word in shared)]
        self._file = SweepFile(
            name=self._folder.name,
            kind="grid",
            metric=BITS_PER_BYTE,
            fingerprint=str(trials[0].sweep),
            command=f"{trials[0].program} -m {shlex.join(fixed)}",
            trials=[*self._records.values(), *others],
        )
        shown = f"{trials[0].config.run.root}/{self._folder.relative_to(trials[0].root)}"
        without_name = [word for word in fixed if not word.startswith("run.name=")]
        self._lines = SearchLines(shown, trials[0].program, without_name)

    def save(self) -> None:
        """Replace the file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file.unranked = why_unranked(self._file.texts(), metric=self._file.metric)
        self._file.save(self._folder)

    def close(self, trial: Job, exit_code: int) -> None:
        """Record a trial's end; a finished run that was stopped or refused before it trained on stays finished."""
        record = self._records[trial.name]
        status = read_status(trial.folder)
        if exit_code != EXIT_DONE and record.state == "finished" and status and status.status == "FINISHED":
            return
        try:
            outcome = outcome_of(trial.folder, exit_code, metric=BITS_PER_BYTE)
        except ConfigurationError:  # a run without validation
            outcome = Outcome(state="finished", exit_code=exit_code)
        run = record.runs[0]
        record.state = run.state = outcome.state
        record.score = run.score = outcome.score
        run.exit_code, run.seconds, record.reason = exit_code, outcome.seconds, outcome.reason
        run.held_out = outcome.held_out
        self.save()

    def end(self, state: str) -> None:
        """Record the sweep's end, and print the ranking of its trials."""
        states = [trial.state for trial in self._records.values()]
        stopped = f", {num} stopped" if (num := states.count("stopped")) else ""  # the same command continues them
        num_ended = sum(state in ENDED for state in states) - num
        self._file.state, self._file.reason = state, f"{num_ended} of {len(states)} trials have ended{stopped}"
        self.save()
        self._lines.last(self._file)


def run_grid(trials: Sequence[Job], ends: Iterable[tuple[Job, int]]) -> int:
    """Train the trials, as `ends` does, and return the worst exit code, or a stop's; print the ranking at the end."""
    codes: list[int] = []
    record = GridRecord(trials)
    record.save()
    code = EXIT_INTERRUPTED  # of Ctrl-C between two trials
    try:
        for trial, outcome in ends:
            codes.append(outcome)
            record.close(trial, outcome)
    except StoppedEarly as stop:
        code = EXIT_CODES[stop.number]
    else:
        code = next((outcome for outcome in codes if outcome in STOPPED), max(codes, default=EXIT_INTERRUPTED))
    finally:
        record.end(status_name(code))
        logger = trials[-1].config.logger.build()
        root = Path(trials[-1].root)
        logger.finish_sweep(grid_folder(trials[-1]), trials[-1].sweep, root=root, status=status_name(code))
    return code
