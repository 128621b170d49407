"""The hours and dollars of a search: planned before its start, and counted while it runs."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.run.sweeps.book import SearchConsole
from lmtrain.run.sweeps.outcome import TrialClock, TrialTime
from lmtrain.search.halving import whole_runs
from lmtrain.search.search_settings import SearchSettings
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial

SECONDS_PER_HOUR: Final = 3600.0
BY_PLAN: Final = "by the plan"
LOOK_SECONDS: Final = 1.0  # between two looks at the runs' clocks
SURE_SHARE: Final = 0.1  # of a limit, after which a pace above it decides


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """The limits of a search; `planned_seconds` are one run's by its plan, `usd_per_hour` all devices' of one run.

    Parallel runs share the hours of the clock; dollars are counted per run. `source` says where the plan has its speed
    from, and `has_start` whether the planned seconds include a run's start-up. `rounds` are the ends of halving's
    rounds.
    """

    settings: SearchSettings
    planned_seconds: float | None
    usd_per_hour: float | None
    source: str = BY_PLAN
    has_start: bool = True
    rounds: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.settings.max_usd is not None and not self.usd_per_hour:
            raise ConfigurationError(
                f"sweep.max_usd={self.settings.max_usd:g} needs a price: set cluster.usd_per_gpu_hour to the price of "
                "one device."
            )

    @property
    def max_seconds(self) -> float | None:
        """Return the limit of all runs' seconds together, None without a limit."""
        limits: list[float] = []
        if self.settings.max_hours is not None:
            limits.append(self.settings.max_hours * SECONDS_PER_HOUR * self.settings.parallel)
        if self.settings.max_usd is not None and self.usd_per_hour:
            limits.append(self.settings.max_usd / self.usd_per_hour * SECONDS_PER_HOUR)
        return min(limits, default=None)

    def spent_line(self, *, run_seconds: float, clock_seconds: float) -> str | None:
        """Return a line if a limit is reached: the dollars by all runs' seconds, the hours by the clock too."""
        hours = self.settings.max_hours
        if hours is not None and clock_seconds >= hours * SECONDS_PER_HOUR:
            return f"{self.limits()} is spent ({format_quantity(round(clock_seconds, 1), 'seconds')} of the clock)"
        if self.max_seconds is not None and run_seconds >= self.max_seconds:
            return f"{self.limits()} is spent ({self._amount(run_seconds)})"
        return None

    def trial_seconds(self, sweep: SweepFile) -> float:
        """Return the expected seconds of a trial: the mean of the finished ones, else as planned, else 0."""
        taken = [trial.seconds for trial in sweep.trials if trial.state == "finished" and trial.runs]
        return statistics.fmean(taken) if taken else (self.planned_seconds or 0.0) * self.settings.seeds

    def no_room_line(self, sweep: SweepFile, *, num_running: int) -> str | None:
        """Return a line if one more trial does not fit next to the running ones."""
        spent, trial = sum(trial.seconds for trial in sweep.trials), self.trial_seconds(sweep)
        if self.max_seconds is None or spent + (num_running + 1) * trial <= self.max_seconds:
            return None
        return (
            f"{self.limits()} has no room for another trial of about {self._amount(trial)}: {self._amount(spent)} are "
            "spent"
        )

    def line(self, num_trials: int) -> str:
        """Describe the search's expected time and price, and its limits.

        Raises:
            ConfigurationError: Not even one trial fits.
        """
        runs = format_count(num_trials, "trial")
        runs += f" of {self.settings.seeds} seeds" if self.settings.seeds > 1 else ""
        if self.planned_seconds is None:
            then = "" if self.max_seconds is None else "; its first steps plan all of them"
            return f"{runs}; this machine's speed is not known before the first one (lmtrain doctor --calibrate){then}"
        of_trial, whole = self.planned_seconds * self.settings.seeds, self._seconds_of(num_trials)
        clock = format_quantity(whole / self.settings.parallel, "seconds")
        source = self.source if self.has_start else f"{self.source}, without start-up"
        each = "for one to its end" if self._halves else "each"
        shown = f"{runs}, about {format_quantity(of_trial, 'seconds')} {each} {source}: {clock}"
        if self.usd_per_hour:
            shown += f", {format_quantity(whole / SECONDS_PER_HOUR * self.usd_per_hour, 'usd')}"
        if self._halves:
            shown += " in rounds of halving"
        if self.max_seconds is None or whole <= self.max_seconds:
            return shown
        fitting = sum(self._seconds_of(num) <= self.max_seconds for num in range(1, num_trials))
        if fitting < 1:
            raise ConfigurationError(
                f"{self.limits()} is less than one trial takes {self.source}, {self._amount(of_trial)}; raise it, or "
                "give the run a smaller budget."
            )
        return f"{shown}; {self.limits()} has room for about {fitting} of them"

    @property
    def _halves(self) -> bool:
        return len(self.rounds) > 1

    def _seconds_of(self, num_trials: int) -> float:
        """Return the planned seconds of all runs of a number of trials."""
        factor = self.settings.halving_factor
        whole = whole_runs(num_trials, self.rounds, factor=factor) if self._halves else num_trials
        return whole * (self.planned_seconds or 0.0) * self.settings.seeds

    def limits(self) -> str:
        """Return the limits as overrides."""
        named = {"max_hours": self.settings.max_hours, "max_usd": self.settings.max_usd}
        return " and ".join(f"sweep.{name}={value:g}" for name, value in named.items() if value is not None)

    def _amount(self, seconds: float) -> str:
        shown = format_quantity(round(seconds, 1), "seconds")
        if not self.usd_per_hour:
            return shown
        return f"{shown}, {format_quantity(seconds / SECONDS_PER_HOUR * self.usd_per_hour, 'usd')}"


class TimedRun(Protocol):
    """A running run with its clock."""

    trial: SweepTrial
    run: SweepRun
    clock: TrialClock


@dataclass(kw_only=True)
class SearchLimits:
    """The allowance of a search as its runs spend it; `reached` and `no_room` say why it ended, once it has."""

    allowance: Allowance
    sweep: SweepFile
    num_trials: int
    console: SearchConsole
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
        """Return whether one more trial fits next to the running ones; print a line if none does."""
        line = self.allowance.no_room_line(self.sweep, num_running=num_running)
        if line is not None:
            self.no_room = f"{self.allowance.limits()} has no room for another trial"
            self.console.print_once(line)
        return line is None

    @property
    def are_due(self) -> bool:
        """Return whether the last look was a second ago."""
        return time.monotonic() - self._looked_at >= LOOK_SECONDS

    def look(self, running: Sequence[TimedRun]) -> None:
        """Note a reached limit; else plan all trials again, once, by the first steps of one.

        Raises:
            ConfigurationError: The limits are below the time of a single trial.
        """
        if self.allowance.max_seconds is None:
            return
        self._looked_at = time.monotonic()
        times = {id(each.run): each.clock.look() for each in running}
        clock_seconds = self._before_seconds + self._looked_at - self._began
        self.reached = self.allowance.spent_line(run_seconds=self._run_seconds(times), clock_seconds=clock_seconds)
        if self.reached:
            running_trials = "; running trials stop after their step, with a checkpoint" if running else ""
            self.console.print_once(f"{self.reached}{running_trials}; the same command with a higher limit continues")
        elif self.allowance.source == BY_PLAN and all(trial.state != "finished" for trial in self.sweep.trials):
            self._plan_by_first_steps({each.trial.number: times[id(each.run)] for each in running})

    def _plan_by_first_steps(self, times: dict[int, TrialTime]) -> None:
        max_seconds = self.allowance.max_seconds or 0.0
        for number, found in times.items():
            if found.whole_seconds is None:
                continue
            fits = found.whole_seconds * self.allowance.settings.seeds <= max_seconds
            if not fits and found.spent_seconds < SURE_SHARE * max_seconds:  # the pace may still change
                continue
            source = f"by {found.steps} steps of trial {number}" if found.steps else "by their budget"
            self.allowance = replace(self.allowance, planned_seconds=found.whole_seconds, source=source, has_start=True)
            try:
                self.console.print_once(self.allowance.line(self.num_trials))
            except ConfigurationError as refusal:
                raise ConfigurationError(f"{refusal} The trained steps are kept for a higher limit.") from refusal
            return

    def _run_seconds(self, times: dict[int, TrialTime]) -> float:
        """Add up the seconds of all runs; `times` holds those of running ones, by the identity of their run."""
        runs = [run for trial in self.sweep.trials for run in trial.runs]
        return sum(times[id(run)].spent_seconds if id(run) in times else run.seconds for run in runs)
