"""The limits of a search while it goes on: all trials planned by the first steps of one, and its runs' time counted."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lmtrain.errors import ConfigurationError
from lmtrain.run.sweeps.allowance import BY_PLAN, Allowance
from lmtrain.run.sweeps.trial_clock import TrialClock, TrialTime
from lmtrain.run.sweeps.trial_lines import TrialLines
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial

LOOK_SECONDS: Final = 1.0  # between two looks at the runs' clocks
SURE_SHARE: Final = 0.1  # of a limit, after which a pace above it decides


class TimedRun(Protocol):
    """A run under way with its clock."""

    trial: SweepTrial
    run: SweepRun
    clock: TrialClock


@dataclass(kw_only=True)
class SearchLimits:
    """The allowance of a search as its runs spend it; `reached` and `no_room` are the words of its end, once it is."""

    allowance: Allowance
    sweep: SweepFile
    num_trials: int
    progress: TrialLines
    reached: str | None = field(default=None, init=False)
    no_room: str | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _before_seconds: float = field(default=0.0, init=False)  # of the sweep's clock, in earlier processes
    _looked_at: float = field(default=0.0, init=False)

    def begin(self) -> None:
        """Count from now on, after the runs of earlier processes."""
        self._began = time.monotonic()
        self._before_seconds = self._run_seconds({}) / self.allowance.settings.parallel

    def have_room(self, *, num_running: int) -> bool:
        """Tell whether one more trial fits beside the running ones; say it where none does."""
        if self.allowance.has_room(self.sweep, num_running=num_running):
            return True
        self.no_room = f"{self.allowance.limits()} has no room for another trial"
        self.progress.tell_once(self.allowance.room_line(self.sweep))
        return False

    @property
    def are_due(self) -> bool:
        """Tell whether the last look is a second ago."""
        return time.monotonic() - self._looked_at >= LOOK_SECONDS

    def look(self, running: Sequence[TimedRun]) -> None:
        """Note a reached limit; else plan all trials anew, once, by the first steps of one.

        Raises:
            ConfigurationError: The limits are below the time of a single trial.
        """
        if self.allowance.most_seconds is None:
            return
        self._looked_at = time.monotonic()
        times = {id(each.run): each.clock.look() for each in running}
        run_seconds = self._run_seconds(times)
        clock_seconds = self._before_seconds + self._looked_at - self._began
        if self.allowance.is_spent(run_seconds=run_seconds, clock_seconds=clock_seconds):
            self.reached = self.allowance.spent_line(run_seconds=run_seconds, clock_seconds=clock_seconds)
            under_way = "; trials under way stop after their step, with a checkpoint" if running else ""
            self.progress.tell_once(f"{self.reached}{under_way}; with a higher limit the same command goes on")
        elif self.allowance.source == BY_PLAN and all(trial.state != "finished" for trial in self.sweep.trials):
            self._plan_anew({each.trial.number: times[id(each.run)] for each in running})

    def _plan_anew(self, times: dict[int, TrialTime]) -> None:
        for number, found in times.items():
            if found.whole_seconds is not None and self._is_sure(found.whole_seconds, spent=found.spent_seconds):
                source = f"by {found.steps} steps of trial {number}" if found.steps else "by their budget"
                self.allowance = self.allowance.measured(found.whole_seconds, source=source)
                try:
                    self.progress.tell_once(self.allowance.line(self.num_trials))
                except ConfigurationError as refusal:
                    kept = "The trained steps are kept for a higher limit."
                    raise ConfigurationError(f"{refusal} {kept}") from refusal
                return

    def _is_sure(self, whole_seconds: float, *, spent: float) -> bool:
        """Tell whether the first steps' pace decides: below a whole trial only once a tenth of the limit is spent."""
        most = self.allowance.most_seconds or 0.0
        return whole_seconds * self.allowance.settings.seeds <= most or spent >= SURE_SHARE * most

    def _run_seconds(self, times: dict[int, TrialTime]) -> float:
        """Add up the seconds of all runs; `times` are those under way, by the identity of their run."""
        runs = [run for trial in self.sweep.trials for run in trial.runs]
        return sum(times[id(run)].spent_seconds if id(run) in times else run.seconds for run in runs)
