"""The hours and dollars of a sweep: planned before its start, counted while it goes on."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.search.halving import whole_runs
from lmtrain.search.search_settings import SearchSettings
from lmtrain.tracking.sweep_file import SweepFile

SECONDS_PER_HOUR: Final = 3600.0
BY_PLAN: Final = "by the plan"


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What a sweep may take; `planned_seconds` are one run's by its plan, `usd_per_hour` all devices' of one run.

    Runs side by side share the hours of the clock; dollars are of each run. `source` tells whence the plan has its
    speed: a run's first steps come before a speed measured or assumed elsewhere. `has_start` tells whether the planned
    seconds begin at a run's start, and not at its first step. `rounds` are their ends, several with halving.
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
    def most_seconds(self) -> float | None:
        """Return the limit of all runs' seconds together, None without a limit."""
        limits: list[float] = []
        if self.settings.max_hours is not None:
            limits.append(self.settings.max_hours * SECONDS_PER_HOUR * self.settings.parallel)
        if self.settings.max_usd is not None and self.usd_per_hour:
            limits.append(self.settings.max_usd / self.usd_per_hour * SECONDS_PER_HOUR)
        return min(limits, default=None)

    def is_spent(self, *, run_seconds: float, clock_seconds: float) -> bool:
        """Tell whether a limit is reached: the dollars by all runs' seconds, the hours by the sweep's clock too."""
        most = self.most_seconds
        return most is not None and (run_seconds >= most or self._is_late(clock_seconds))

    def _is_late(self, clock_seconds: float) -> bool:
        hours = self.settings.max_hours
        return hours is not None and clock_seconds >= hours * SECONDS_PER_HOUR

    def measured(self, run_seconds: float, *, source: str) -> "Allowance":
        """Return the allowance with a run's seconds by its own first steps."""
        return replace(self, planned_seconds=run_seconds, source=source, has_start=True)

    def trial_seconds(self, sweep: SweepFile) -> float | None:
        """Return the expected seconds of a trial: as finished ones took, else as planned; None where neither is."""
        taken = [trial.seconds for trial in sweep.trials if trial.state == "finished" and trial.runs]
        if taken:
            return statistics.fmean(taken)
        return None if self.planned_seconds is None else self.planned_seconds * self.settings.seeds

    def has_room(self, sweep: SweepFile, *, num_running: int) -> bool:
        """Tell whether one more trial fits beside the running ones."""
        if self.most_seconds is None:
            return True
        spent = sum(trial.seconds for trial in sweep.trials)
        return spent + (num_running + 1) * (self.trial_seconds(sweep) or 0.0) <= self.most_seconds

    def room_line(self, sweep: SweepFile) -> str:
        """Describe a limit without room for the next trial: spent, and that trial's expected time."""
        spent = sum(trial.seconds for trial in sweep.trials)
        return (
            f"{self.limits()} has no room for another trial of about "
            f"{self._amount(self.trial_seconds(sweep) or 0.0)}: {self._amount(spent)} are spent"
        )

    def spent_line(self, *, run_seconds: float, clock_seconds: float) -> str:
        """Describe a limit reached by trials under way: the hours by the clock, the dollars by the runs."""
        if self._is_late(clock_seconds):
            return f"{self.limits()} is spent ({format_quantity(round(clock_seconds, 1), 'seconds')} of the clock)"
        return f"{self.limits()} is spent ({self._amount(run_seconds)})"

    def line(self, num_trials: int) -> str:
        """Describe the sweep's expected time and price, beside its limits.

        Raises:
            ConfigurationError: Not even one trial fits.
        """
        runs = format_count(num_trials, "trial") + (
            f" of {self.settings.seeds} seeds" if self.settings.seeds > 1 else ""
        )
        if self.planned_seconds is None:
            then = "" if self.most_seconds is None else "; its first steps plan all of them"
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
        if self.most_seconds is None or whole <= self.most_seconds:
            return shown
        fitting = sum(self._seconds_of(num) <= self.most_seconds for num in range(1, num_trials))
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
        """Return the planned seconds of all runs of so many trials."""
        factor = self.settings.halving_factor
        whole = whole_runs(num_trials, self.rounds, factor=factor) if self._halves else num_trials
        return whole * (self.planned_seconds or 0.0) * self.settings.seeds

    def limits(self) -> str:
        """Name the limits as they are typed."""
        named = {"max_hours": self.settings.max_hours, "max_usd": self.settings.max_usd}
        return " and ".join(f"sweep.{name}={value:g}" for name, value in named.items() if value is not None)

    def _amount(self, seconds: float) -> str:
        shown = format_quantity(round(seconds, 1), "seconds")
        if not self.usd_per_hour:
            return shown
        return f"{shown}, {format_quantity(seconds / SECONDS_PER_HOUR * self.usd_per_hour, 'usd')}"
