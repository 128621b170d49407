"""sweep.json of a grid, `-m` alone: runs/sweep-ID/sweep.json beside the trials' own folders."""

import os
from collections.abc import Sequence
from pathlib import Path

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.composition.execution.trial_outcome import Outcome, outcome_of
from lmtrain.composition.stored_runs.job import Job
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.redacting.redaction import redact_override
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial


class GridRecord:
    """The trials of a grid in their order; each run's end replaces the file."""

    def __init__(self, trials: Sequence[Job]) -> None:
        root = Path(trials[0].root)
        self._folder = root / str(trials[0].sweep)
        shared = set(trials[0].overrides).intersection(*(trial.overrides for trial in trials))
        records = [
            SweepTrial(
                number=number,
                values=_values([word for word in trial.overrides if word not in shared]),
                runs=[SweepRun(folder=os.path.relpath(trial.folder, self._folder), seed=trial.config.seed)],
            )
            for number, trial in enumerate(trials)
        ]
        self._records = {trial.name: record for trial, record in zip(trials, records, strict=True)}
        fixed = [redact_override(word) for word in trials[0].overrides if word in shared]
        self._file = SweepFile(
            name=str(trials[0].sweep),
            kind="grid",
            metric=BITS_PER_BYTE,
            fingerprint=str(trials[0].sweep),
            command=" ".join([trials[0].program, "-m", *fixed]),
            trials=records,
        )

    def close(self, trial: Job, exit_code: int) -> None:
        """Note a trial's end."""
        try:
            outcome = outcome_of(trial.folder, exit_code, metric=BITS_PER_BYTE)
        except ConfigurationError:  # a run without validation: the grid does not judge
            outcome = Outcome(state="finished", exit_code=exit_code)
        record = self._records[trial.name]
        run = record.runs[0]
        record.state = run.state = outcome.state
        record.score = run.score = outcome.score
        run.exit_code, run.seconds, record.reason = exit_code, outcome.seconds, outcome.reason
        self._save()

    def end(self, state: str) -> None:
        """Note the sweep's end."""
        self._file.state = state
        self._save()

    def _save(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file.save(self._folder)


def _values(words: Sequence[str]) -> dict[str, str]:
    pairs = (redact_override(word).lstrip("+").partition("=") for word in words)
    return {key: value for key, _, value in pairs}
