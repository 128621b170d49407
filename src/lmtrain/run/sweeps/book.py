"""The trials of a search: drawn, scored, promoted and ended, first in sweep.json and then in Optuna's study.

Whenever a process is killed, the next one brings the study up to date with sweep.json, and no trial begins twice.
"""

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.runs.held_out import why_unranked
from lmtrain.report.sweep_page import noise_words, score_words, trial_decimals
from lmtrain.run.sweeps.outcome import Outcome
from lmtrain.search.halving import promoted
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import Space, words_of
from lmtrain.search.study import draw, end_trial, open_trials
from lmtrain.tracking.sweep_file import ENDED, SweepFile, SweepRun, SweepTrial

if TYPE_CHECKING:
    from optuna import Study, Trial

BAD_VALUES: Final = ("diverged", "out_of_memory", "pruned")  # states for which the values are to blame
TO_TRAIN: Final = ("waiting", "running", "stopped")
MAX_LINES: Final = 5  # of the best trials
MAX_CHARACTERS: Final = 200  # of a reason


@dataclass
class SearchConsole:
    """Lines for each start and end of a search's trials, and the last lines; `folder` is relative to here."""

    folder: str
    program: str
    fixed: Sequence[str]
    _printed: set[str] = field(default_factory=set[str])

    def started(self, trial: SweepTrial, run: SweepRun, *, num_rounds: int) -> None:
        """Print the start of a run."""
        seed = f" seed {run.seed}" if len(trial.runs) > 1 else ""
        part = f", round {trial.rounds + 1} of {num_rounds}" if num_rounds > 1 else ""
        print(f"trial {trial.number}{seed}{part}: {' '.join(trial.words)}", flush=True)

    def ended(self, trial: SweepTrial, sweep: SweepFile) -> None:
        """Print how a trial ended, and the best so far."""
        decimals = trial_decimals(sweep.finished())
        if trial.state in ("finished", "paused", "pruned"):
            seconds = format_quantity(round(trial.seconds, 1), "seconds")
            state = "" if trial.state == "finished" else f"{trial.state}, "
            reason = f" ({trial.reason})" if trial.reason else ""
            end = f"{state}{score_words(trial, decimals=decimals)}{reason}, {seconds}"
        else:
            reason = (trial.reason or "no reason known").strip().splitlines()[0]
            short = reason if len(reason) <= MAX_CHARACTERS else f"{reason[: MAX_CHARACTERS - 1]}…"
            end = f"{trial.state.replace('_', ' ')}: {short}"
        best = sweep.best_trial()
        so_far = "" if best is None else f" | best {best.score:.{decimals}f} of trial {best.number}"
        print(f"trial {trial.number}: {end}{so_far}", flush=True)
        if sweep.unranked:
            self.print_once(sweep.unranked)

    def promoted(self, kept: Sequence[int], *, num_of: int) -> None:
        """Print which trials continue."""
        print(f"round over: of {num_of} trials {', '.join(map(str, kept))} continue", flush=True)

    def print_once(self, line: str) -> None:
        """Print a line, the same one only once."""
        if line not in self._printed:
            self._printed.add(line)
            print(line, flush=True)

    def last_lines(self, sweep: SweepFile) -> None:
        """Print the best trials, the noise between the first two, and what to type next; no best if incomparable."""
        finished = sweep.finished()
        others = [trial.state for trial in sweep.trials if trial.state != "finished"]
        counts = "".join(f", {others.count(state)} {state.replace('_', ' ')}" for state in dict.fromkeys(others))
        ranked = "" if sweep.unranked else ", lower is better"
        print(f"{format_count(len(sweep.trials), 'trial')}: {len(finished)} finished{counts}; {sweep.metric}{ranked}")
        decimals = trial_decimals(finished)
        for trial in finished[:MAX_LINES]:
            print(f"  trial {trial.number:<4} {score_words(trial, decimals=decimals):<24} {' '.join(trial.words)}")
        if sweep.unranked:
            print(sweep.unranked)
        elif finished:
            if noise := noise_words(finished):
                print(noise)
            print(f"train the best: {self.program} {shlex.join([*self.fixed, *finished[0].words])}")
        print(f"{self.folder}/sweep.json has all; side by side: lmtrain compare {shlex.quote(self.folder)}")
        print(f"as a page: lmtrain report {shlex.quote(self.folder)}")


@dataclass(kw_only=True)
class TrialBook:
    """A search's records; `rounds` are the validations, from 1, at which halving's rounds end, and the run."""

    sweep: SweepFile
    study: "Study"
    space: Space
    settings: SearchSettings
    seeds: Sequence[int]
    rounds: Sequence[int]
    folder: Path
    console: SearchConsole
    _trials: "dict[int, Trial]" = field(default_factory=dict, init=False)

    def save(self) -> None:
        """Replace sweep.json."""
        self.sweep.unranked = why_unranked(self.sweep.texts(), metric=self.sweep.metric)
        self.sweep.save(self.folder)

    def adopt(self) -> list[SweepTrial]:
        """Return the trials that an earlier process began and did not end; update the study."""
        known = {record.number: record for record in self.sweep.trials}
        found: list[SweepTrial] = []
        for trial in open_trials(self.study):
            record = known.get(trial.number) or self._record(trial)
            self._trials[trial.number] = trial
            if record.state in ENDED and record.state != "stopped":
                self._end_in_study(record)
                continue
            record.state = "paused" if record.state == "paused" else "waiting"
            for done in range(len(self.study.trials[trial.number].intermediate_values), record.rounds):
                trial.report(record.score or 0.0, done)
            found.append(record)
        self.save()
        return found

    def draw(self) -> SweepTrial:
        """Return a new trial; if a finished trial has the same values, it gets that score and is finished."""
        trial = draw(self.study, self.space, self.settings)
        record = self._record(trial)
        self._trials[trial.number] = trial
        same = (each for each in self.sweep.trials if each.values == record.values and each.state == "finished")
        twin = next(same, None)
        if twin is not None:
            record.state, record.score, record.deviation = "finished", twin.score, twin.deviation
            record.runs, record.reason = [], f"the values of trial {twin.number}"
            self._end(record)
        return record

    def runs_to_train(self, record: SweepTrial) -> list[SweepRun]:
        """Return the unfinished runs of a trial's round."""
        return [] if record.state == "paused" else [run for run in record.runs if run.state in TO_TRAIN]

    def pause_after(self, record: SweepTrial) -> tuple[int, int] | None:
        """Return the part of the run, (k, n), after which the trial's round ends; None for the whole run."""
        return None if self._is_last_round(record) else (self.rounds[record.rounds], self.rounds[-1])

    def _is_last_round(self, record: SweepTrial) -> bool:
        return record.rounds == len(self.rounds) - 1

    def close_run(self, record: SweepTrial, run: SweepRun, outcome: Outcome) -> None:
        """Record a run's end; its trial, or the trial's round, may end with it."""
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
            self._score(record)
        else:
            self.save()

    def report(self, record: SweepTrial, value: float, *, step: int) -> bool:
        """Report a value during a run to the pruner; return whether the trial is to end."""
        trial = self._trials[record.number]
        if step not in self.study.trials[record.number].intermediate_values:
            trial.report(value, step)
        return trial.should_prune()

    def close_round(self, *, factor: int) -> list[SweepTrial]:
        """Return the better trials of a round, and end the others; none while one of them is stopped."""
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
                self._end_in_study(record)
        self.console.promoted(kept, num_of=len(waiting))
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

    def _score(self, record: SweepTrial) -> None:
        """Score a trial, all of whose runs are at the end of its round."""
        scores = [run.score for run in record.runs if run.score is not None]
        record.score = statistics.fmean(scores)
        record.deviation = statistics.stdev(scores) if len(scores) > 1 else None
        if self._is_last_round(record):
            record.state = "finished"
            self._end(record)
            return
        record.state, record.rounds = "paused", record.rounds + 1
        self.save()
        self._trials[record.number].report(record.score, record.rounds - 1)
        self.console.ended(record, self.sweep)

    def _end(self, record: SweepTrial) -> None:
        self.save()
        self._end_in_study(record)
        self.console.ended(record, self.sweep)

    def _end_in_study(self, record: SweepTrial) -> None:
        if record.state == "stopped":  # a later process continues it
            return
        score = record.score if record.state == "finished" else None
        end_trial(self.study, record.number, score=score, is_bad_place=record.state in BAD_VALUES)


def is_first_round_over(sweep: SweepFile) -> bool:
    """Return whether halving has chosen who continues: a trial drawn later would have no competitors at its step."""
    return any(trial.rounds > 1 or (trial.rounds == 1 and trial.state != "paused") for trial in sweep.trials)
