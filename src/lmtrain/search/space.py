"""The space of a search: a list of values or an interval for each key."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtrain.errors import ConfigurationError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True, kw_only=True)
class ListedValues:
    """One of several values, each as in an override."""

    values: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the values to check before the first trial: all of them."""
        return self.values

    def distribution(self) -> "BaseDistribution":
        """Return Optuna's form."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def word(self, value: Any) -> str:
        """Return a drawn value as in an override."""
        return str(value)

    def describe(self) -> str:
        """Return the space as in an override."""
        return ",".join(self.values)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A number from `low` to `high`, both included; integers if there is a `step`; uniform, or in its logarithm."""

    low: float
    high: float
    step: int | None = None
    is_log: bool = False

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the values to check before the first trial: lowest and highest."""
        return self.word(self.low), self.word(self.high)

    def distribution(self) -> "BaseDistribution":
        """Return Optuna's form."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.step is None:
            return FloatDistribution(self.low, self.high, log=self.is_log)
        return IntDistribution(int(self.low), int(self.high), log=self.is_log, step=1 if self.is_log else self.step)

    def word(self, value: Any) -> str:
        """Return a drawn value as in an override, with six significant digits."""
        if self.step is not None:
            return str(int(value))
        short = f"{float(value):.6g}"
        return short if self.low <= float(short) <= self.high else repr(float(value))

    def describe(self) -> str:
        """Return the space as in an override."""
        low, high = _number(self.low), _number(self.high)
        bounds = f"{low},{high}"
        inner = f"interval({bounds})" if self.step is None else f"int(interval({bounds}))"
        if self.step not in (None, 1):
            inner = f"range({low},{_number(self.high + 1)},{self.step})"
        return f"tag(log,{inner})" if self.is_log else inner


Dimension = ListedValues | Interval
Space = Mapping[str, Dimension]


def _number(value: float) -> str:
    """Format a number in its shortest form."""
    short = f"{value:.15g}"
    return short if float(short) == value else repr(value)


def interval(key: str, low: float, high: float, *, step: int | None = None, is_log: bool = False) -> Interval:
    """Return an interval of a key: finite bounds in order, and above 0 for a logarithm."""
    bounds = f"interval({low:g},{high:g})"
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigurationError(f"{key}={bounds}: both ends must be finite numbers, as in {key}=interval(0.1,1).")
    if not low < high:
        raise ConfigurationError(f"{key}={bounds} is empty; write {key}=interval({high:g},{low:g}).")
    if is_log and low <= 0:
        raise ConfigurationError(f"{key}=tag(log,{bounds}): the low end must be above 0.")
    return Interval(low=low, high=high, step=step, is_log=is_log)


def grid_of(space: Space) -> dict[str, list[Any]]:
    """Return all values of each key.

    Raises:
        ConfigurationError: A key has an interval without steps.
    """
    found: dict[str, list[Any]] = {}
    for key, dimension in space.items():
        if isinstance(dimension, ListedValues):
            found[key] = [*dimension.values]
        elif dimension.step is not None and not dimension.is_log:
            found[key] = [*range(int(dimension.low), int(dimension.high) + 1, dimension.step)]
        else:
            raise ConfigurationError(
                f"{key}={dimension.describe()} has no steps for sweep.sampler=grid; list its values, {key}=A,B, or "
                "set sweep.sampler=tpe."
            )
    return found


def checked_words(space: Space) -> list[list[str]]:
    """Return the choices to check before the first trial: each key's values or ends, with the others' first ones."""
    first = {key: dimension.ends[0] for key, dimension in space.items()}
    found = [first, *({**first, key: end} for key, dimension in space.items() for end in dimension.ends[1:])]
    return [[f"{key}={value}" for key, value in values.items()] for values in found]


def num_of_grid(space: Space) -> int:
    """Count the combinations of a grid."""
    return math.prod(len(values) for values in grid_of(space).values())


def require_space(space: Space, *, sampler: str, words: Sequence[str]) -> None:
    """Refuse an empty space, and a sampler that cannot draw from it."""
    if not space:
        raise ConfigurationError(
            f"{' '.join(words)}: a search needs a key with values, as 'optimizer.lr=tag(log,interval(1e-4,1e-2))' or "
            "GROUP=OPTION,OPTION, or an option of hparams_search."
        )
    if sampler == "grid":
        grid_of(space)
    if sampler == "cmaes" and sum(isinstance(dimension, Interval) for dimension in space.values()) < 2:
        raise ConfigurationError(
            f"sweep.sampler=cmaes needs at least two intervals among {', '.join(space)}; set sweep.sampler=tpe."
        )
