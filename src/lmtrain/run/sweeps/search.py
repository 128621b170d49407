"""A search: draw trials, train their runs side by side, and judge them.

A trial's run is one process group, told its values by a file; its points come back from its folder. A trial that
failed is recorded, and the search goes on. At a limit of hours or dollars, after a signal and at the wish for a stop in
its folder, the runs under way end after their step, with a checkpoint, for the next start of the same command; a trial
stopped by itself waits for that start too, and with it the round of halving that it is in.
"""

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Final

from lmtrain.errors import EXIT_DONE, EXIT_NO, LMTRAIN_ERRORS, ConfigurationError
from lmtrain.launch.job import plain_exit_code
from lmtrain.run.execution.trial_outcome import KILLED, Outcome, has_trained, outcome_of, seconds_of
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.book import TrialBook, is_first_round_over
from lmtrain.run.sweeps.local_runner import Runner, RunningTrial
from lmtrain.run.sweeps.search_limits import SearchLimits
from lmtrain.run.sweeps.sweep_folder import SweepFolder
from lmtrain.run.sweeps.trial_clock import TrialClock, clock_of
from lmtrain.run.sweeps.trial_lines import TrialLines
from lmtrain.run.sweeps.trial_process import refusal_path
from lmtrain.search.search_settings import SearchSettings
from lmtrain.tracking.run_folder import ask_to_stop, forget_stop, is_asked_to_stop
from lmtrain.tracking.run_log import LogOffset, read_after
from lmtrain.tracking.sweep_file import ENDED, SweepRun, SweepTrial

POLL_SECONDS: Final = 0.2
GOES_ON: Final = "the same command goes on with it"
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@dataclass(kw_only=True)
class Running:
    """A run under way, with the place in its points up to which they were reported."""

    trial: SweepTrial
    run: SweepRun
    process: RunningTrial
    slot: int
    clock: TrialClock
    place: LogOffset = field(default_factory=LogOffset)
    is_pruned: bool = False


@dataclass(kw_only=True)
class Search:
    """One search from its start, or its going on, to its end; `make_job` composes the job of some words."""

    settings: SearchSettings
    num_trials: int
    folder: SweepFolder
    book: TrialBook
    make_job: Callable[[Sequence[str]], Job]
    runner: Runner
    limits: SearchLimits
    progress: TrialLines
    _queue: deque[tuple[SweepTrial, SweepRun]] = field(default_factory=deque, init=False)
    _running: list[Running] = field(default_factory=list, init=False)
    _signal: int | None = field(default=None, init=False)
    _refusal: ConfigurationError | None = field(default=None, init=False)

    def run(self) -> int:
        """Train until the trials or the allowance are spent; return the exit code.

        Raises:
            ConfigurationError: The limits are below a trial's time by its first steps, or no trial logs the metric;
                what was trained stays.
        """
        before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        self.book.sweep.state, self.book.sweep.reason, is_through = "RUNNING", None, False
        try:
            for trial in self.book.adopt():
                for run in trial.runs:
                    run.seconds = seconds_of(self._path(run))  # a killed process could not note them
                self._queue_runs(trial)
            self.limits.begin()
            while self._fill() or self._running:
                time.sleep(POLL_SECONDS)
                self._poll()
            is_through = True
        finally:
            for each in self._running:  # only after an error here
                each.process.stop(signal.SIGTERM)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._close_sweep(is_stopped=bool(self._signal) or not is_through)
        if self._refusal is not None:
            raise self._refusal
        if self._signal:
            return plain_exit_code(-self._signal)
        return EXIT_DONE if self.book.sweep.finished() else EXIT_NO

    def _close_sweep(self, *, is_stopped: bool) -> None:
        sweep = self.book.sweep
        num, num_stopped = len(sweep.trials), sum(trial.state == "stopped" for trial in sweep.trials)
        is_over = not (is_stopped or num_stopped)
        sweep.state = "FAILED" if self._refusal and not is_stopped else "FINISHED" if is_over else "KILLED"
        stopped = "it was stopped" if is_stopped else None
        counts = f"{sum(trial.state in ENDED for trial in sweep.trials) - num_stopped} of {num} trials have ended"
        ended = f"{counts}, {num_stopped} stopped; {GOES_ON}" if num_stopped else f"all {num} trials have ended"
        sweep.reason = str(self._refusal or stopped or self.limits.reached or self.limits.no_room or ended)
        self.book.save()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signal = number
        self._stop_runs(number)

    def _stop_runs(self, number: int = signal.SIGTERM) -> None:
        for each in self._running:
            each.process.stop(number)

    def _refuse(self, refusal: ConfigurationError) -> None:
        """End the search with a refusal, once its runs have ended."""
        if self._refusal is None:
            self._refusal = refusal
            self._stop_runs()

    @property
    def _is_ending(self) -> bool:
        return bool(self._signal or self._refusal or self.limits.reached)

    def _queue_runs(self, trial: SweepTrial) -> None:
        self._queue.extend((trial, run) for run in self.book.runs_to_train(trial))

    def _fill(self) -> bool:
        """Start runs while there are free slots; tell whether any was."""
        started = False
        while len(self._running) < self.settings.parallel and not self._is_ending:
            if not (self._queue or self._draw() or self._close_round()):
                break
            if self._queue:
                self._look_at_limits()
                if self._is_ending:
                    break
                trial, run = self._queue.popleft()
                started = (trial.state not in ENDED and self._start(trial, run)) or started
        return started

    def _draw(self) -> bool:
        """Draw the next trial; tell whether there was one."""
        if is_first_round_over(self.book.sweep) or len(self.book.sweep.trials) >= self.num_trials:
            return False
        if not self.limits.have_room(num_running=len(self._running)):
            return False
        self._queue_runs(self.book.draw())
        return True

    def _close_round(self) -> bool:
        """Promote the better part of a round, once nothing of it runs; tell whether there is one."""
        if self._running:
            return False
        kept = self.book.close_round(factor=self.settings.halving_factor)
        for trial in kept:
            self._queue_runs(trial)
        return bool(kept)

    def _start(self, trial: SweepTrial, run: SweepRun) -> bool:
        """Start a run; a refused one ends its trial."""
        words = [*trial.words, *([] if "seed" in trial.values else [f"seed={run.seed}"])]
        try:
            job = self.make_job(words)
        except LMTRAIN_ERRORS as refused:
            outcome = Outcome(state="failed", exit_code=refused.exit_code, reason=str(refused))
            self.book.close_run(trial, run, outcome)
            return False
        job = replace(job, name=f"{self.book.sweep.name}/{run.folder}", pause_after=self.book.pause_after(trial))
        path = self.folder.job_path(run.folder)
        job.save(path)
        slot = next(each for each in range(self.settings.parallel) if each not in {one.slot for one in self._running})
        clock = clock_of(self._path(run))
        process = self.runner.start(job, path, slot=slot)
        trial.state, run.state, trial.reason = "running", "running", None
        self._running.append(Running(trial=trial, run=run, process=process, slot=slot, clock=clock))
        if self._signal:  # it came while the run was composed and started, which takes a second
            process.stop(self._signal)
        self.book.save()
        self.progress.started(trial, run, num_rounds=len(self.book.rounds))
        return True

    def _poll(self) -> None:
        if is_asked_to_stop(self.folder.path):  # lmtrain stop
            forget_stop(self.folder.path)
            self._stop(signal.SIGTERM, None)
        if self.limits.are_due and not self._is_ending:
            self._look_at_limits()
        for each in [*self._running]:
            if self.settings.pruner == "median" and each.run is each.trial.runs[0]:
                self._report(each)
            code = each.process.exit_code()
            if code is not None:
                self._running.remove(each)
                self._close(each, code)

    def _look_at_limits(self) -> None:
        """Stop the runs where a limit is reached, or below the time of a single trial."""
        try:
            self.limits.look(self._running)
        except ConfigurationError as refusal:
            self._refuse(refusal)
        if self.limits.reached:
            self._stop_runs()

    def _close(self, each: Running, code: int) -> None:
        refusal = refusal_path(self.folder.job_path(each.run.folder))
        words = refusal.read_text() if refusal.exists() else None
        try:
            outcome = outcome_of(self._path(each.run), code, metric=self.book.sweep.metric, refusal=words)
        except ConfigurationError as unknown:
            self._wait(each, seconds=seconds_of(self._path(each.run)))
            kept = "The trained run is kept: the same command with another sweep.metric goes on with it."
            self._refuse(ConfigurationError(f"{unknown} {kept}"))
            return
        was_stopped = outcome.state == "stopped" or outcome.exit_code == KILLED  # by its launcher, after the grace
        if was_stopped and self._is_ending:  # with the whole sweep
            self._wait(each, seconds=outcome.seconds)
            return
        if outcome.state == "stopped" and each.is_pruned:
            outcome = replace(outcome, state="pruned")
        elif outcome.state == "stopped" and has_trained(self._path(each.run), self.book.pause_after(each.trial)):
            is_known = outcome.score is not None
            outcome = replace(outcome, state="paused" if is_known else "diverged", reason="no score at its round's end")
        elif outcome.state == "stopped":  # it alone: lmtrain stop, or its machine
            outcome = replace(outcome, reason=GOES_ON)
        self.book.close_run(each.trial, each.run, outcome)

    def _wait(self, each: Running, *, seconds: float) -> None:
        """Leave a run to the next start of the same command."""
        each.run.state = each.trial.state = "waiting"
        each.run.seconds, each.trial.reason = seconds, self.limits.reached
        self.book.save()

    def _report(self, each: Running) -> None:
        """Hand new validations of a trial's first run to the pruner, and ask for the run's stop where that prunes."""
        found = read_after(self._path(each.run) / "metrics.jsonl", each.place)
        each.place = found.next
        values = [(point.step, point.metrics.get(self.book.sweep.metric)) for point in found.points if point.step]
        for step, value in values:
            if value is None or not math.isfinite(value):
                continue
            if self.book.report(each.trial, value, step=step) and not each.is_pruned:
                each.is_pruned = True
                ask_to_stop(self._path(each.run))

    def _path(self, run: SweepRun) -> Path:
        return self.folder.path / run.folder
