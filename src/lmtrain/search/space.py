"""What a search may choose: a list of values or an interval for each key."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtrain.errors import ConfigurationError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True, kw_only=True)
class ListedValues:
    """One of some values, each as it is typed."""

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
        """Return a drawn value as it is typed."""
        return str(value)

    def describe(self) -> str:
        """Return it as it is typed."""
        return ",".join(self.values)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A number from `low` to `high`, both included; whole ones in steps of `step`; evenly, or so in its logarithm."""

    low: float
    high: float
    step: int | None = None
    is_log: bool = False

    @property
    def is_whole(self) -> bool:
        """Tell whether only whole numbers are drawn."""
        return self.step is not None

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
        """Return a drawn value as it is typed: six significant digits are more than a search can tell apart."""
        if self.is_whole:
            return str(int(value))
        short = f"{float(value):.6g}"
        return short if self.low <= float(short) <= self.high else repr(float(value))

    def describe(self) -> str:
        """Return it as it is typed."""
        low, high = _number(self.low), _number(self.high)
        bounds = f"{low},{high}"
        inner = f"interval({bounds})" if self.step is None else f"int(interval({bounds}))"
        if self.step not in (None, 1):
            inner = f"range({low},{_number(self.high + 1)},{self.step})"
        return f"tag(log,{inner})" if self.is_log else inner


def _number(value: float) -> str:
    """Write a number whole, and short where that is the same number."""
    short = f"{value:.15g}"
    return short if float(short) == value else repr(value)


Dimension = ListedValues | Interval
Space = Mapping[str, Dimension]


def interval(key: str, low: float, high: float, *, step: int | None = None, is_log: bool = False) -> Interval:
    """Return an interval of a key.

    Raises:
        ConfigurationError: A bound is missing, they are in the wrong order, or a logarithm is not of positive ones.
    """
    typed = f"{key}=interval({low:g},{high:g})"
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigurationError(f"{typed} has no bound: both ends must be finite numbers, as {key}=interval(0.1,1).")
    if not low < high:
        raise ConfigurationError(f"{typed} is empty; nearest valid: {key}=interval({high:g},{low:g}).")
    if is_log and low <= 0:
        raise ConfigurationError(
            f"{key}=tag(log,interval({low:g},{high:g})) begins at {low:g}, without a logarithm; begin above 0, as "
            f"{key}=tag(log,interval({high / 1000:g},{high:g}))."
        )
    return Interval(low=low, high=high, step=step, is_log=is_log)


def grid_of(space: Space) -> dict[str, list[Any]]:
    """Return all values of each key.

    Raises:
        ConfigurationError: A key has an interval of numbers, which has no list.
    """
    found: dict[str, list[Any]] = {}
    for key, dimension in space.items():
        if isinstance(dimension, ListedValues):
            found[key] = [*dimension.values]
        elif dimension.step is not None and not dimension.is_log:
            found[key] = [*range(int(dimension.low), int(dimension.high) + 1, dimension.step)]
        else:
            raise ConfigurationError(
                f"{key}={dimension.describe()} has no steps for sweep.sampler=grid; list values, {key}=A,B, or choose "
                "sweep.sampler=tpe."
            )
    return found


def words_of(space: Space, values: Mapping[str, Any]) -> list[str]:
    """Return drawn values as overrides."""
    return [f"{key}={dimension.word(values[key])}" for key, dimension in space.items()]


def checked_words(space: Space) -> list[list[str]]:
    """Return choices to check before the first trial: each key's values or ends, beside the others' first ones."""
    first = {key: dimension.ends[0] for key, dimension in space.items()}
    found = [first, *({**first, key: end} for key, dimension in space.items() for end in dimension.ends[1:])]
    return [[f"{key}={value}" for key, value in values.items()] for values in found]


def num_of_grid(space: Space) -> int:
    """Count the combinations of a grid."""
    return math.prod(len(values) for values in grid_of(space).values())


def require_space(space: Space, *, sampler: str, words: Sequence[str]) -> None:
    """Refuse a search over nothing, and a sampler unfit for the space.

    Raises:
        ConfigurationError: It is empty, or has lists alone under CMA-ES.
    """
    if not space:
        raise ConfigurationError(
            f"{' '.join(words)}: a search needs a key with values, as 'optimizer.lr=tag(log,interval(1e-4,1e-2))' or "
            "GROUP=OPTION,OPTION; options of hparams_search have some."
        )
    if sampler == "grid":
        grid_of(space)
    numbers = [key for key, dimension in space.items() if isinstance(dimension, Interval)]
    if sampler == "cmaes" and len(numbers) < 2:
        raise ConfigurationError(
            f"sweep.sampler=cmaes draws two numbers or more together, and of {', '.join(space)} "
            f"{len(numbers)} is an interval; nearest valid: sweep.sampler=tpe."
        )
