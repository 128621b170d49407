"""A sweep: train the trials of a grid, or drawn ones, side by side, and score them in sweep.json, then in the study.

A trial's run is one process group that gets its values from a file; its points come back from its folder. A failed
trial is recorded, and the search continues. At its limit of hours, after a signal and at a stop request in its
folder, the running runs end after their step, with a checkpoint. Whenever a process ends or is killed, the next start
of the same command brings the study up to date with sweep.json, and its unfinished runs resume.
"""

import math
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Final

from lmtrain.errors import EXIT_DONE, EXIT_NO, LMTRAIN_ERRORS, ConfigurationError
from lmtrain.launch.rank_ends import plain_exit_code
from lmtrain.report.runs.held_out import why_unranked
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.outcome import KILLED, Outcome, outcome_of, seconds_of
from lmtrain.run.sweeps.runners import Runner, RunningTrial, refusal_path
from lmtrain.run.sweeps.search_lines import SearchLines
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.study import SearchStudy
from lmtrain.tracking.run_folder import ask_to_stop, forget_stop, is_asked_to_stop
from lmtrain.tracking.run_log import LogOffset, read_after
from lmtrain.tracking.sweep_file import ENDED, SweepFile, SweepRun, SweepTrial
from lmtrain.training.stopping import handling

JOBS: Final = "jobs"  # folder of the runs' jobs and consoles
POLL_SECONDS: Final = 0.2
CONTINUES: Final = "the same command continues it"
BAD_VALUES: Final = ("diverged", "out_of_memory", "pruned")  # states for which the values are to blame
SECONDS_PER_HOUR: Final = 3600.0


@dataclass(kw_only=True)
class TrialRun:
    """A running run in its slot, the place in its log and the number of validations reported to the pruner."""

    job: Job
    process: RunningTrial
    slot: int
    trial: SweepTrial
    run: SweepRun
    place: LogOffset = field(default_factory=LogOffset)
    num_reported: int = 0
    is_pruned: bool = False


@dataclass(kw_only=True)
class Sweep:
    """One sweep from its start, or its continuation, to its end; `make_job` gives the job of a trial's run.

    At most `settings.parallel` runs train at once; `stopped_by` is the signal that stopped them, 0 without one.
    `study` draws the trials of a search, with `seeds` each; None: a grid, whose trials are `given`.
    """

    settings: SearchSettings
    num_trials: int
    folder: Path
    sweep: SweepFile
    make_job: Callable[[SweepTrial, SweepRun], Job]
    runner: Runner
    lines: SearchLines
    study: SearchStudy | None = None
    seeds: Sequence[int] = ()
    given: Sequence[SweepTrial] = ()
    _queue: deque[tuple[SweepTrial, SweepRun]] = field(default_factory=deque, init=False)
    running: list[TrialRun] = field(default_factory=list[TrialRun], init=False)
    stopped_by: int = field(default=0, init=False)
    _refusal: ConfigurationError | None = field(default=None, init=False)
    _limit: str | None = field(default=None, init=False)
    _worst: int = field(default=EXIT_DONE, init=False)  # of the runs' exit codes
    _began: float = field(default=0.0, init=False)

    def run(self) -> int:
        """Train until the trials or the hours are spent; return the exit code: a grid's is the worst of its runs.

        Raises:
            ConfigurationError: No trial of a search logs the metric; trained steps are kept.
        """
        self.sweep.state, self.sweep.reason, is_through = "RUNNING", None, False
        (self.folder / JOBS).mkdir(parents=True, exist_ok=True)
        try:
            with handling(self._hear):
                try:
                    self._train_all()
                finally:
                    self._stop()  # runs left by an error
            is_through = True
        finally:
            self._close_sweep(is_stopped=bool(self.stopped_by) or not is_through)
        if self._refusal is not None:
            raise self._refusal
        if self.stopped_by:
            return plain_exit_code(-self.stopped_by)
        if self.study is None:
            return self._worst
        return EXIT_DONE if self.sweep.finished() else EXIT_NO

    def _train_all(self) -> None:
        self._adopt()
        seconds = sum(trial.seconds for trial in self.sweep.trials)  # of earlier starts
        self._began = time.monotonic() - seconds / self.settings.parallel
        while self._fill() or self.running:
            time.sleep(POLL_SECONDS)
            if is_asked_to_stop(self.folder):  # lmtrain stop
                forget_stop(self.folder)
                self._hear(signal.SIGTERM, None)
            for each in [*self.running]:
                if (code := each.process.exit_code()) is not None:
                    self.running.remove(each)
                    self._close(each, code)
            for each in self.running:
                self._report(each)
            self._look_at_limit()

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.stopped_by = number
        self._stop(number)

    def _stop(self, number: int = signal.SIGTERM) -> None:
        """Let the runs end after their steps, with checkpoints."""
        for each in self.running:
            each.process.stop(number)

    def _adopt(self) -> None:
        """Queue the trials that are given, or that an earlier process began and did not end; update the study."""
        known = {record.number: record for record in self.sweep.trials}
        begun = [*self.given]
        for number, values in self.study.unfinished() if self.study else ():
            record = known.get(number) or self._record(number, values)
            if record.state in ENDED and record.state != "stopped":
                self._tell(record)
            else:
                begun.append(record)
        for record in begun:
            record.state = "waiting"
            for run in record.runs:
                run.seconds = seconds_of(self.folder / run.folder)  # a killed process could not note them
            self._queue_runs(record)
        self._save()

    @property
    def _is_ending(self) -> bool:
        return bool(self.stopped_by or self._refusal or self._limit)

    def _queue_runs(self, trial: SweepTrial) -> None:
        self._queue.extend((trial, run) for run in trial.runs if run.state not in ENDED or run.state == "stopped")

    def _fill(self) -> bool:
        """Start runs while there are free slots; return whether any was."""
        num_before = len(self.running)
        while len(self.running) < self.settings.parallel and not self._is_ending and (self._queue or self._draw()):
            if self._queue:
                trial, run = self._queue.popleft()
                if trial.state not in ENDED:
                    self._start(trial, run)
                self._look_at_limit()
        return len(self.running) > num_before

    def _draw(self) -> bool:
        """Draw the next trial; return whether there was one. Values drawn again have their first trial's score."""
        if self.study is None or len(self.sweep.trials) >= self.num_trials:
            return False
        record = self._record(*self.study.draw())
        same = (one for one in self.sweep.trials if one.values == record.values and one.state == "finished")
        if (twin := next(same, None)) is not None:
            record.state, record.score, record.deviation = "finished", twin.score, twin.deviation
            record.runs, record.reason = [], f"the values of trial {twin.number}"
            self._end(record)
        self._queue_runs(record)
        return True

    def _record(self, number: int, values: dict[str, str]) -> SweepTrial:
        name = f"trial-{number:04d}"
        folders = [name] if len(self.seeds) == 1 else [f"{name}-seed-{seed}" for seed in self.seeds]
        runs = [SweepRun(folder=folder, seed=seed) for folder, seed in zip(folders, self.seeds, strict=True)]
        record = SweepTrial(number=number, values=values, runs=runs)
        self.sweep.trials.append(record)
        self._save()
        return record

    def _start(self, trial: SweepTrial, run: SweepRun) -> None:
        """Start a run; a refused one ends its trial."""
        try:
            job = self.make_job(trial, run)
        except LMTRAIN_ERRORS as refused:
            outcome = Outcome(state="failed", exit_code=refused.exit_code, reason=str(refused))
            self._close_run(trial, run, outcome)
            return
        path = self._job_path(job)
        job.save(path)
        slot = next(each for each in range(self.settings.parallel) if each not in {one.slot for one in self.running})
        process = self.runner.start(job, path, slot=slot)
        self.running.append(TrialRun(job=job, process=process, slot=slot, trial=trial, run=run))
        if self.stopped_by:  # a signal came during the start: submitting to SLURM takes a second
            process.stop(self.stopped_by)
        trial.state, run.state, trial.reason = "running", "running", None
        self._save()
        self.lines.started(trial, run)

    def _job_path(self, job: Job) -> Path:
        return self.folder / JOBS / f"{job.folder.name}.json"

    def _look_at_limit(self) -> None:
        """Stop the runs if the hours are spent."""
        hours = self.settings.max_hours
        if hours is None or self._is_ending or time.monotonic() - self._began < hours * SECONDS_PER_HOUR:
            return
        self._limit = f"sweep.max_hours={hours:g} is spent"
        print(f"{self._limit}; running trials stop with a checkpoint; a higher limit continues them", flush=True)
        self._stop()

    def _report(self, progress: TrialRun) -> None:
        """Report the validations of a trial's first run to the pruner, which may end the trial."""
        is_first = progress.run is progress.trial.runs[0]
        if self.study is None or self.settings.pruner == "none" or not is_first or progress.is_pruned:
            return
        points, place = read_after(self.folder / progress.run.folder / "metrics.jsonl", progress.place)
        if place.inode != progress.place.inode:  # a new file: the run went back to a checkpoint
            progress.num_reported = 0
        progress.place = place
        for point in points:
            value = point.metrics.get(self.sweep.metric)
            if not point.step or value is None or not math.isfinite(value):
                continue
            progress.num_reported += 1
            if self.study.is_pruned(progress.trial.number, value, validation=progress.num_reported):
                progress.is_pruned = True
        if progress.is_pruned:
            ask_to_stop(self.folder / progress.run.folder)

    def _close(self, progress: TrialRun, code: int) -> None:
        folder, refusal = progress.job.folder, refusal_path(self._job_path(progress.job))
        message = refusal.read_text() if refusal.exists() else None
        try:
            needs_score = self.study is not None
            outcome = outcome_of(folder, code, metric=self.sweep.metric, refusal=message, needs_score=needs_score)
        except ConfigurationError as unknown:
            self._leave_waiting(progress, seconds=seconds_of(folder))
            self._refusal = self._refusal or unknown
            self._stop()
            return
        was_stopped = outcome.state == "stopped" or outcome.exit_code == KILLED  # by its launcher, after the grace
        if was_stopped and self._is_ending:  # with the whole sweep
            self._leave_waiting(progress, seconds=outcome.seconds)
            return
        if outcome.state == "stopped":  # by the pruner; else only this run, by lmtrain stop or its machine
            is_pruned = progress.is_pruned
            outcome = replace(
                outcome, state="pruned" if is_pruned else "stopped", reason=None if is_pruned else CONTINUES
            )
        self._close_run(progress.trial, progress.run, outcome)

    def _leave_waiting(self, progress: TrialRun, *, seconds: float) -> None:
        """Leave a run to the next start of the same command."""
        progress.run.state = progress.trial.state = "waiting"
        progress.run.seconds, progress.trial.reason = seconds, self._limit
        self._save()

    def _close_run(self, trial: SweepTrial, run: SweepRun, outcome: Outcome) -> None:
        """Record a run's end; its trial may end with it."""
        run.state, run.exit_code, run.score = outcome.state, outcome.exit_code, outcome.score
        run.seconds, run.held_out = outcome.seconds, outcome.held_out
        self._worst = max(self._worst, outcome.exit_code)
        is_left = trial.state == "stopped" and outcome.state not in ("finished", "stopped")
        if trial.state in ENDED and not is_left:  # by another of its runs
            self._save()
        elif outcome.state != "finished":
            trial.state, trial.reason = outcome.state, outcome.reason
            trial.score = outcome.score if outcome.state == "pruned" else None
            self._end(trial)
        elif all(each.state == "finished" for each in trial.runs):
            scores = [each.score for each in trial.runs if each.score is not None]
            trial.state, trial.score = "finished", statistics.fmean(scores) if scores else None
            trial.deviation = statistics.stdev(scores) if len(scores) > 1 else None
            self._end(trial)
        else:
            self._save()

    def _end(self, trial: SweepTrial) -> None:
        self._save()
        self._tell(trial)
        self.lines.ended(trial, self.sweep)

    def _tell(self, trial: SweepTrial) -> None:
        """End a trial in the study; one that was stopped continues at the next start."""
        if self.study and trial.state != "stopped":
            score = trial.score if trial.state == "finished" else None
            self.study.end(trial.number, score=score, is_bad_place=trial.state in BAD_VALUES)

    def _save(self) -> None:
        self.sweep.unranked = why_unranked(self.sweep.texts(), metric=self.sweep.metric)
        self.sweep.save(self.folder)

    def _close_sweep(self, *, is_stopped: bool) -> None:
        states = [trial.state for trial in self.sweep.trials]
        num_stopped = states.count("stopped")
        is_over = not (is_stopped or num_stopped)
        self.sweep.state = "FAILED" if self._refusal and not is_stopped else "FINISHED" if is_over else "KILLED"
        ended = f"{sum(state in ENDED for state in states) - num_stopped} of {len(states)} trials have ended"
        ended += f", {num_stopped} stopped; {CONTINUES}" if num_stopped else ""
        self.sweep.reason = str(self._refusal or ("it was stopped" if is_stopped else None) or self._limit or ended)
        self._save()
