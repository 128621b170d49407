"""The trials of a search: drawn, scored, promoted and ended, in sweep.json first and in Optuna's study after it.

Whatever moment a process is killed at, the next one brings the study up to sweep.json, and no trial begins twice.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.report.runs.held_out import why_unranked
from lmtrain.run.execution.trial_outcome import Outcome
from lmtrain.run.sweeps.trial_lines import TrialLines
from lmtrain.search.halving import promoted
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import Space, words_of
from lmtrain.search.study import draw, end_trial, open_trials
from lmtrain.tracking.sweep_file import ENDED, SweepFile, SweepRun, SweepTrial

if TYPE_CHECKING:
    from optuna import Study, Trial

BAD_PLACES: Final = ("diverged", "out_of_memory", "pruned")  # the values are to blame
TO_TRAIN: Final = ("waiting", "running", "stopped")


@dataclass(kw_only=True)
class TrialBook:
    """A search's records; `rounds` are the validations, from 1, at which the rounds of halving end, and the run."""

    sweep: SweepFile
    study: "Study"
    space: Space
    settings: SearchSettings
    seeds: Sequence[int]
    rounds: Sequence[int]
    folder: Path
    progress: TrialLines
    _trials: "dict[int, Trial]" = field(default_factory=dict, init=False)

    def save(self) -> None:
        """Replace sweep.json."""
        self.sweep.unranked = why_unranked(self.sweep.texts(), metric=self.sweep.metric)
        self.sweep.save(self.folder)

    def adopt(self) -> list[SweepTrial]:
        """Return the trials begun by an earlier process and not ended; the study learns what it missed."""
        known = {record.number: record for record in self.sweep.trials}
        found: list[SweepTrial] = []
        for trial in open_trials(self.study):
            record = known.get(trial.number) or self._record(trial)
            self._trials[trial.number] = trial
            if record.state in ENDED and record.state != "stopped":
                self._tell(record)
                continue
            record.state = "paused" if record.state == "paused" else "waiting"
            for done in range(len(self.study.trials[trial.number].intermediate_values), record.rounds):
                trial.report(record.score or 0.0, done)
            found.append(record)
        self.save()
        return found

    def draw(self) -> SweepTrial:
        """Return a new trial; one of a finished trial's values has its score and is finished."""
        trial = draw(self.study, self.space, self.settings)
        record = self._record(trial)
        self._trials[trial.number] = trial
        same = (each for each in self.sweep.trials if each.values == record.values and each.state == "finished")
        twin = next(same, None)
        if twin is not None:  # training it again would show nothing new
            record.state, record.score, record.deviation = "finished", twin.score, twin.deviation
            record.runs, record.reason = [], f"the values of trial {twin.number}"
            self._end(record)
        return record

    def runs_to_train(self, record: SweepTrial) -> list[SweepRun]:
        """Return the unfinished runs of a trial's round."""
        return [] if record.state == "paused" else [run for run in record.runs if run.state in TO_TRAIN]

    def pause_after(self, record: SweepTrial) -> tuple[int, int] | None:
        """Return the part of the run, (k, n), after which the trial's round ends; None for the whole run."""
        return None if self.is_last_round(record) else (self.rounds[record.rounds], self.rounds[-1])

    def is_last_round(self, record: SweepTrial) -> bool:
        """Tell whether a trial trains to its run's end."""
        return record.rounds == len(self.rounds) - 1

    def close_run(self, record: SweepTrial, run: SweepRun, outcome: Outcome) -> None:
        """Note a run's end; with it its trial may end, or its round."""
        run.state, run.exit_code, run.score = outcome.state, outcome.exit_code, outcome.score
        run.seconds, run.held_out = outcome.seconds, outcome.held_out
        is_left = record.state == "stopped" and outcome.state not in ("finished", "paused", "stopped")
        if record.state in ENDED and not is_left:
            self.save()
        elif outcome.state not in ("finished", "paused"):
            record.state, record.reason = outcome.state, outcome.reason
            record.score = outcome.score if outcome.state == "pruned" else None
            self._end(record)
        elif not self.runs_to_train(record):
            self._judge(record)
        else:
            self.save()

    def report(self, record: SweepTrial, value: float, *, step: int) -> bool:
        """Hand a value during a run to the pruner; tell whether the trial is to end."""
        trial = self._trials[record.number]
        if step not in self.study.trials[record.number].intermediate_values:
            trial.report(value, step)
        return trial.should_prune()

    def close_round(self, *, factor: int) -> list[SweepTrial]:
        """Return the better trials of a round, for the next, and end the others; none while one of them is stopped."""
        if any(each.state == "stopped" for each in self.sweep.trials):
            return []
        waiting = {each.number: each for each in self.sweep.trials if each.state == "paused"}
        scores = {number: each.score for number, each in waiting.items() if each.score is not None}
        if not scores:
            return []
        kept = promoted(scores, factor=factor)
        for number, record in waiting.items():
            if number in kept:
                record.state = "waiting"
                for run in record.runs:
                    run.state = "waiting"
            else:
                record.state, record.reason = "pruned", f"not among the {len(kept)} best of its round"
        self.save()
        for number, record in waiting.items():
            if number not in kept:
                self._tell(record)
        self.progress.promoted(kept, num_of=len(waiting))
        return [waiting[number] for number in kept]

    def _record(self, trial: "Trial") -> SweepTrial:
        values = dict(word.split("=", 1) for word in words_of(self.space, trial.params))
        name = f"trial-{trial.number:04d}"
        folders = [name] if len(self.seeds) == 1 else [f"{name}-seed-{seed}" for seed in self.seeds]
        runs = [SweepRun(folder=folder, seed=seed) for folder, seed in zip(folders, self.seeds, strict=True)]
        record = SweepTrial(number=trial.number, values=values, runs=runs)
        self.sweep.trials.append(record)
        self.save()
        return record

    def _judge(self, record: SweepTrial) -> None:
        """Give a trial, all of whose runs are at the end of its round, its score."""
        scores = [run.score for run in record.runs if run.score is not None]
        record.score = statistics.fmean(scores)
        record.deviation = statistics.stdev(scores) if len(scores) > 1 else None
        if self.is_last_round(record):
            record.state = "finished"
            self._end(record)
            return
        record.state, record.rounds = "paused", record.rounds + 1
        self.save()
        self._trials[record.number].report(record.score, record.rounds - 1)
        self.progress.ended(record, self.sweep)

    def _end(self, record: SweepTrial) -> None:
        self.save()
        self._tell(record)
        self.progress.ended(record, self.sweep)

    def _tell(self, record: SweepTrial) -> None:
        if record.state == "stopped":  # it goes on
            return
        score = record.score if record.state == "finished" else None
        end_trial(self.study, record.number, score=score, is_bad_place=record.state in BAD_PLACES)


def is_first_round_over(sweep: SweepFile) -> bool:
    """Tell whether halving has chosen who goes on: a trial drawn since would compete with none at its step."""
    return any(trial.rounds > 1 or (trial.rounds == 1 and trial.state != "paused") for trial in sweep.trials)
