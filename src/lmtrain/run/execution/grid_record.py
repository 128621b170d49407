"""sweep.json of a grid, `-m` alone: in runs/NAME with run.name=NAME, else in runs/sweep-ID beside the runs."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.report.runs.held_out import why_unranked
from lmtrain.run.execution.trial_outcome import Outcome, outcome_of
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.redaction import redact_override
from lmtrain.tracking.status import read_status
from lmtrain.tracking.sweep_file import ENDED, SweepFile, SweepRun, SweepTrial, read_sweep


def grid_folder(trial: Job) -> Path:
    """Return the folder of a grid's sweep.json, jobs and consoles."""
    return Path(trial.root) / (trial.config.run.name or str(trial.sweep))


def require_grid(folder: Path) -> SweepFile | None:
    """Return what a grid's folder holds, None for nothing yet.

    Raises:
        ConfigurationError: It is a search.
        DataError: It is of another version.
    """
    found = read_sweep(folder)
    if found is not None and found.kind != "grid":
        raise ConfigurationError(f"{folder} is a search; give the grid another run.name.")
    return found


class GridRecord:
    """The trials of a grid in their order, then those of earlier grids of its name; each run's end replaces the file.

    A trial of an earlier start is as that one left it until it ends anew.

    Raises:
        ConfigurationError: The name is that of a search.
        DataError: The folder is of another version.
    """

    def __init__(self, trials: Sequence[Job]) -> None:
        self._folder = grid_folder(trials[0])
        found = require_grid(self._folder)
        earlier = {run.folder: trial for trial in (found.trials if found else []) for run in trial.runs}
        shared = set(trials[0].overrides).intersection(*(trial.overrides for trial in trials))
        records: list[SweepTrial] = []
        for number, trial in enumerate(trials):
            run = SweepRun(folder=os.path.relpath(trial.folder, self._folder), seed=trial.config.seed)
            is_known = run.folder in earlier and trial.config.resume != "never" and trial.folder.exists()
            known = earlier[run.folder] if is_known else SweepTrial(number=number, values={}, runs=[run])
            values = _values([word for word in trial.overrides if word not in shared])
            records.append(replace(known, number=number, values=values))
        self._records = {trial.name: record for trial, record in zip(trials, records, strict=True)}
        fixed = [redact_override(word) for word in trials[0].overrides if word in shared]
        self._file = SweepFile(
            name=self._folder.name,
            kind="grid",
            metric=BITS_PER_BYTE,
            fingerprint=str(trials[0].sweep),
            command=f"{trials[0].program} -m {shlex.join([*trials[0].kept_flags, *fixed])}",
            trials=records,
        )

    def begin(self) -> None:
        """Write the file before the first trial."""
        self._save()

    def close(self, trial: Job, exit_code: int) -> None:
        """Note a trial's end; a finished run that was stopped or refused before it trained on is still finished."""
        record = self._records[trial.name]
        status = read_status(trial.folder)
        if exit_code != EXIT_DONE and record.state == "finished" and status and status.status == "FINISHED":
            return
        try:
            outcome = outcome_of(trial.folder, exit_code, metric=BITS_PER_BYTE)
        except ConfigurationError:  # a run without validation: the grid does not judge
            outcome = Outcome(state="finished", exit_code=exit_code)
        run = record.runs[0]
        record.state = run.state = outcome.state
        record.score = run.score = outcome.score
        run.exit_code, run.seconds, record.reason = exit_code, outcome.seconds, outcome.reason
        run.held_out = outcome.held_out
        self._save()

    def is_finished(self, name: str) -> bool:
        """Tell whether a trial's run is, by this start or an earlier one."""
        return self._records[name].state == "finished"

    @property
    def unranked(self) -> str | None:
        """Say why the trials' scores do not compare, None where they do."""
        return self._file.unranked

    def end(self, state: str) -> None:
        """Note the sweep's end."""
        states = [trial.state for trial in self._records.values()]
        stopped = f", {num} stopped" if (num := states.count("stopped")) else ""  # it goes on by the same command
        num_ended = sum(state in ENDED for state in states) - num
        self._file.state, self._file.reason = state, f"{num_ended} of {len(states)} trials have ended{stopped}"
        self._save()

    def _save(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        mine = [*self._records.values()]
        self._file.trials = [replace(trial, number=number) for number, trial in enumerate([*mine, *self._others()])]
        self._file.unranked = why_unranked(self._file.texts(), metric=self._file.metric)
        self._file.save(self._folder)

    def _others(self) -> list[SweepTrial]:
        """Return the trials in the folder's file that are not of this grid."""
        found = require_grid(self._folder)
        mine = {run.folder for record in self._records.values() for run in record.runs}
        return [trial for trial in (found.trials if found else []) if not mine & {run.folder for run in trial.runs}]


def _values(words: Sequence[str]) -> dict[str, str]:
    pairs = (redact_override(word).lstrip("+").partition("=") for word in words)
    return {key: value for key, _, value in pairs}
