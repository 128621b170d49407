"""The hours and dollars of a search, compared with its limits while it runs."""

from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.search.search_settings import SearchSettings

SECONDS_PER_HOUR: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """The limits of a search; `usd_per_hour` is the price of all devices of one run.

    Parallel runs share the hours of the clock; dollars are counted per run.
    """

    settings: SearchSettings
    usd_per_hour: float | None

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

    def _amount(self, seconds: float) -> str:
        shown = format_quantity(round(seconds, 1), "seconds")
        if not self.usd_per_hour:
            return shown
        return f"{shown}, {format_quantity(seconds / SECONDS_PER_HOUR * self.usd_per_hour, 'usd')}"
