"""A search: draw trials, train their runs side by side, and judge them.

A trial's run is one process group, told its values by a file; its points come back from its folder. A trial that
failed is recorded, and the search goes on.
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

from lmtrain.composition.execution.searching.allowance import Allowance
from lmtrain.composition.execution.searching.book import TrialBook
from lmtrain.composition.execution.searching.local_runner import Runner, RunningTrial
from lmtrain.composition.execution.searching.sweep_folder import SweepFolder
from lmtrain.composition.execution.searching.trial_lines import TrialLines
from lmtrain.composition.execution.searching.trial_process import refusal_path
from lmtrain.composition.execution.trial_outcome import Outcome, outcome_of
from lmtrain.composition.stored_runs.job import Job
from lmtrain.errors import EXIT_DONE, EXIT_NO, LMTRAIN_ERRORS
from lmtrain.launch.exit_codes import plain_exit_code
from lmtrain.search.search_settings import SearchSettings
from lmtrain.tracking.log_tail import LogOffset, read_after
from lmtrain.tracking.stop_request import ask_to_stop
from lmtrain.tracking.sweep_file import ENDED, SweepRun, SweepTrial

POLL_SECONDS: Final = 0.2
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@dataclass(kw_only=True)
class Running:
    """A run under way, with the place in its points up to which they were reported."""

    trial: SweepTrial
    run: SweepRun
    process: RunningTrial
    slot: int
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
    allowance: Allowance
    progress: TrialLines
    _queue: deque[tuple[SweepTrial, SweepRun]] = field(default_factory=deque, init=False)
    _running: list[Running] = field(default_factory=list, init=False)
    _signal: int | None = field(default=None, init=False)

    def run(self) -> int:
        """Train until the trials or the allowance are spent; return the exit code."""
        before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            for trial in self.book.adopt():
                self._queue_runs(trial)
            while self._fill() or self._running:
                time.sleep(POLL_SECONDS)
                self._poll()
        finally:
            for each in self._running:  # only after an error here
                each.process.stop(signal.SIGTERM)
            for number, handler in before.items():
                signal.signal(number, handler)
            self.book.sweep.state = "KILLED" if self._signal or self._running else "FINISHED"
            self.book.save()
        if self._signal:
            return plain_exit_code(-self._signal)
        return EXIT_DONE if self.book.sweep.best is not None else EXIT_NO

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signal = number
        for each in self._running:
            each.process.stop(number)

    def _queue_runs(self, trial: SweepTrial) -> None:
        self._queue.extend((trial, run) for run in self.book.runs_to_train(trial))

    def _fill(self) -> bool:
        """Start runs while there are free slots; tell whether any was."""
        started = False
        while len(self._running) < self.settings.parallel and self._signal is None:
            if not (self._queue or self._draw() or self._close_round()):
                break
            if self._queue:
                trial, run = self._queue.popleft()
                started = (trial.state not in ENDED and self._start(trial, run)) or started
        return started

    def _draw(self) -> bool:
        """Draw the next trial; tell whether there was one."""
        has_closed = any(trial.rounds > 0 and trial.state != "paused" for trial in self.book.sweep.trials)
        if has_closed or len(self.book.sweep.trials) >= self.num_trials:
            return False
        if not self.allowance.has_room(self.book.sweep, num_running=len(self._running)):
            self.progress.tell_once(self.allowance.spent_line(self.book.sweep))
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
        trial.state = run.state = "running"
        self._running.append(Running(trial=trial, run=run, process=self.runner.start(job, path, slot=slot), slot=slot))
        self.book.save()
        self.progress.started(trial, run, num_rounds=len(self.book.rounds))
        return True

    def _poll(self) -> None:
        for each in [*self._running]:
            if self.settings.pruner == "median" and each.run is each.trial.runs[0]:
                self._report(each)
            code = each.process.exit_code()
            if code is not None:
                self._running.remove(each)
                self._close(each, code)

    def _close(self, each: Running, code: int) -> None:
        refusal = refusal_path(self.folder.job_path(each.run.folder))
        words = refusal.read_text() if refusal.exists() else None
        outcome = outcome_of(self._path(each.run), code, metric=self.book.sweep.metric, refusal=words)
        if outcome.state == "stopped" and self._signal:  # with the whole sweep: the same command goes on with it
            each.run.state = each.trial.state = "waiting"
            each.run.seconds = outcome.seconds
            self.book.save()
            return
        if outcome.state == "stopped" and each.is_pruned:
            outcome = replace(outcome, state="pruned")
        elif outcome.state == "stopped" and not self.book.is_last_round(each.trial):
            is_known = outcome.score is not None
            outcome = replace(outcome, state="paused" if is_known else "diverged", reason="no score at its round's end")
        self.book.close_run(each.trial, each.run, outcome)

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
