"""The hours and dollars of a search: planned before its start, and compared with its limits while it runs."""

from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.search.search_settings import SearchSettings

SECONDS_PER_HOUR: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """The limits of a search; `planned_seconds` are one run's by its plan, `usd_per_hour` all devices' of one run.

    Parallel runs share the hours of the clock; dollars are counted per run.
    """

    settings: SearchSettings
    usd_per_hour: float | None
    planned_seconds: float | None = None

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

    @property
    def words(self) -> str:
        """Return the limits as overrides."""
        named = {"max_hours": self.settings.max_hours, "max_usd": self.settings.max_usd}
        return " and ".join(f"sweep.{name}={value:g}" for name, value in named.items() if value is not None)

    def reached(self, *, run_seconds: float, clock_seconds: float) -> str | None:
        """Return a line if a limit is reached: the dollars by all runs' seconds, the hours by the clock too."""
        hours = self.settings.max_hours
        is_late = hours is not None and clock_seconds >= hours * SECONDS_PER_HOUR
        if is_late or (self.max_seconds is not None and run_seconds >= self.max_seconds):
            return f"{self.words} is spent ({self._amount(run_seconds)})"
        return None

    def has_room(self, trial_seconds: float, *, spent_seconds: float, num_running: int) -> bool:
        """Return whether one more trial fits next to the running ones."""
        return self.max_seconds is None or spent_seconds + (num_running + 1) * trial_seconds <= self.max_seconds

    def line(self, num_trials: int) -> str:
        """Describe the search's planned time and price, and its limits.

        Raises:
            ConfigurationError: Not even one trial fits.
        """
        runs = format_count(num_trials, "trial")
        runs += f" of {self.settings.seeds} seeds" if self.settings.seeds > 1 else ""
        if self.planned_seconds is None:
            return f"{runs}; this machine's speed is not known before the first one (lmtrain doctor --calibrate)"
        of_trial = self.planned_seconds * self.settings.seeds
        clock = format_quantity(num_trials * of_trial / self.settings.parallel, "seconds")
        shown = f"{runs}, at most about {format_quantity(of_trial, 'seconds')} each by the plan: {clock}"
        if self.usd_per_hour:
            shown += f", {format_quantity(num_trials * of_trial / SECONDS_PER_HOUR * self.usd_per_hour, 'usd')}"
        if self.max_seconds is None or num_trials * of_trial <= self.max_seconds:
            return shown
        if of_trial > self.max_seconds:
            raise ConfigurationError(
                f"{self.words} is less than one trial takes by the plan, {self._amount(of_trial)}; raise it, or give "
                "the run a smaller budget."
            )
        return f"{shown}; {self.words} has room for about {int(self.max_seconds / of_trial)} of them"

    def _amount(self, seconds: float) -> str:
        shown = format_quantity(round(seconds, 1), "seconds")
        if not self.usd_per_hour:
            return shown
        return f"{shown}, {format_quantity(seconds / SECONDS_PER_HOUR * self.usd_per_hour, 'usd')}"
