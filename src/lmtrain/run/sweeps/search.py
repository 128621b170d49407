"""A search: draw trials, train their runs in parallel, and score them.

A trial's run is one process group that gets its values from a file; its points come back from its folder. A failed
trial is recorded, and the search continues. At a limit of hours or dollars, after a signal and at a stop request in its
folder, the running runs end after their step, with a checkpoint, for the next start of the same command; a trial that
was stopped by itself waits for that start too, and with it its round of halving.
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
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.book import TrialBook, is_first_round_over
from lmtrain.run.sweeps.limits import SearchLimits
from lmtrain.run.sweeps.outcome import KILLED, Outcome, TrialClock, clock_of, has_trained, outcome_of, seconds_of
from lmtrain.run.sweeps.runners import Runner, RunningTrial
from lmtrain.run.sweeps.trial_process import refusal_path
from lmtrain.search.search_settings import SearchSettings
from lmtrain.tracking.run_folder import ask_to_stop, forget_stop, is_asked_to_stop
from lmtrain.tracking.run_log import LogOffset, read_after
from lmtrain.tracking.sweep_file import ENDED, SweepRun, SweepTrial
from lmtrain.training.stopping import SIGNALS

POLL_SECONDS: Final = 0.2
CONTINUES: Final = "the same command continues it"
JOBS: Final = "jobs"


@dataclass(kw_only=True)
class Running:
    """A running run, with the position in its points up to which they were reported."""

    trial: SweepTrial
    run: SweepRun
    process: RunningTrial
    slot: int
    clock: TrialClock
    place: LogOffset = field(default_factory=LogOffset)
    is_pruned: bool = False


@dataclass(kw_only=True)
class Search:
    """One search from its start, or its continuation, to its end; `make_job` composes the job of some overrides."""

    settings: SearchSettings
    num_trials: int
    folder: Path
    book: TrialBook
    make_job: Callable[[Sequence[str]], Job]
    runner: Runner
    limits: SearchLimits
    _queue: deque[tuple[SweepTrial, SweepRun]] = field(default_factory=deque, init=False)
    _running: list[Running] = field(default_factory=list, init=False)
    _signal: int | None = field(default=None, init=False)
    _refusal: ConfigurationError | None = field(default=None, init=False)

    def run(self) -> int:
        """Train until the trials or the allowance are spent; return the exit code.

        Raises:
            ConfigurationError: The limits are below a trial's time by its first steps, or no trial logs the metric;
                trained steps are kept.
        """
        before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        self.book.sweep.state, self.book.sweep.reason, is_through = "RUNNING", None, False
        try:
            for trial in self.book.adopt():
                for run in trial.runs:
                    run.seconds = seconds_of(self.folder / run.folder)  # a killed process could not note them
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
        ended = f"{counts}, {num_stopped} stopped; {CONTINUES}" if num_stopped else f"all {num} trials have ended"
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
        """End the search with an error, once its runs have ended."""
        if self._refusal is None:
            self._refusal = refusal
            self._stop_runs()

    @property
    def _is_ending(self) -> bool:
        return bool(self._signal or self._refusal or self.limits.reached)

    def _queue_runs(self, trial: SweepTrial) -> None:
        self._queue.extend((trial, run) for run in self.book.runs_to_train(trial))

    def _fill(self) -> bool:
        """Start runs while there are free slots; return whether any was."""
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
        """Draw the next trial; return whether there was one."""
        if is_first_round_over(self.book.sweep) or len(self.book.sweep.trials) >= self.num_trials:
            return False
        if not self.limits.have_room(num_running=len(self._running)):
            return False
        self._queue_runs(self.book.draw())
        return True

    def _close_round(self) -> bool:
        """Promote the better part of a round, once none of it runs; return whether there is one."""
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
        path = self._job_path(run)
        job.save(path)
        slot = next(each for each in range(self.settings.parallel) if each not in {one.slot for one in self._running})
        clock = clock_of(self.folder / run.folder)
        process = self.runner.start(job, path, slot=slot)
        trial.state, run.state, trial.reason = "running", "running", None
        self._running.append(Running(trial=trial, run=run, process=process, slot=slot, clock=clock))
        if self._signal:  # it came while the run was composed and started, which takes a second
            process.stop(self._signal)
        self.book.save()
        self.book.console.started(trial, run, num_rounds=len(self.book.rounds))
        return True

    def _job_path(self, run: SweepRun) -> Path:
        return self.folder / JOBS / f"{run.folder}.json"

    def _poll(self) -> None:
        if is_asked_to_stop(self.folder):  # lmtrain stop
            forget_stop(self.folder)
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
        """Stop the runs if a limit is reached, or is below the time of a single trial."""
        try:
            self.limits.look(self._running)
        except ConfigurationError as refusal:
            self._refuse(refusal)
        if self.limits.reached:
            self._stop_runs()

    def _close(self, each: Running, code: int) -> None:
        folder, refusal = self.folder / each.run.folder, refusal_path(self._job_path(each.run))
        message = refusal.read_text() if refusal.exists() else None
        try:
            outcome = outcome_of(folder, code, metric=self.book.sweep.metric, refusal=message)
        except ConfigurationError as unknown:
            self._leave_waiting(each, seconds=seconds_of(folder))
            self._refuse(unknown)
            return
        was_stopped = outcome.state == "stopped" or outcome.exit_code == KILLED  # by its launcher, after the grace
        if was_stopped and self._is_ending:  # with the whole sweep
            self._leave_waiting(each, seconds=outcome.seconds)
            return
        if outcome.state == "stopped" and each.is_pruned:
            outcome = replace(outcome, state="pruned")
        elif outcome.state == "stopped" and has_trained(folder, self.book.pause_after(each.trial)):
            is_known = outcome.score is not None
            outcome = replace(outcome, state="paused" if is_known else "diverged", reason="no score at its round's end")
        elif outcome.state == "stopped":  # only this run: lmtrain stop, or its machine
            outcome = replace(outcome, reason=CONTINUES)
        self.book.close_run(each.trial, each.run, outcome)

    def _leave_waiting(self, each: Running, *, seconds: float) -> None:
        """Leave a run to the next start of the same command."""
        each.run.state = each.trial.state = "waiting"
        each.run.seconds, each.trial.reason = seconds, self.limits.reached
        self.book.save()

    def _report(self, each: Running) -> None:
        """Report new validations of a trial's first run to the pruner, and ask the run to stop if that prunes it."""
        found = read_after(self.folder / each.run.folder / "metrics.jsonl", each.place)
        each.place = found.next
        values = [(point.step, point.metrics.get(self.book.sweep.metric)) for point in found.points if point.step]
        for step, value in values:
            if value is None or not math.isfinite(value):
                continue
            if self.book.report(each.trial, value, step=step) and not each.is_pruned:
                each.is_pruned = True
                ask_to_stop(self.folder / each.run.folder)
