"""The valid numbers of a setting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lmtrain.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Range:
    """The range of a number: at least `low` and at most `high`, or below it; `usual` is its usual value."""

    low: float = 0.0
    high: float = math.inf
    usual: str
    is_open: bool = True
    why: str = ""

    def refusal(self, value: float) -> str | None:
        """Return a value's error and its remedy; None for a valid one."""
        if self.low <= value < self.high or (value == self.high and not self.is_open):
            return None
        if self.high == math.inf:
            rule = f"not a finite number of at least {self.low:g}"
        elif self.low == -math.inf:
            rule = f"not a finite number of at most {self.high:g}"
        else:
            rule = f"not at least {self.low:g} and {'below' if self.is_open else 'at most'} {self.high:,g}"
        return f"{rule}{self.why}; {self.usual} is usual"


SHARE: Final = Range(high=1.0, usual="0.95")  # of a running mean, kept at each step
RATE: Final = Range(high=1e4, usual="0.001 to 0.5", is_open=False)
# Settings with one meaning in all optimizers.
COMMON: Final[Mapping[str, Range]] = MappingProxyType(
    {
        **dict.fromkeys(("momentum", "beta1", "beta2"), SHARE),
        "weight_decay": Range(usual="0.1"),
        "eps": Range(low=1e-38, usual="1e-8", why=", which keeps a gradient of 0 from being divided by 0"),
    }
)
COUNTS: Final = (  # of callbacks
    "every_steps",
    "keep_last",
    "mean_steps",
    "most_waiting",
    "num_new_tokens",
    "num_passes",
    "patience",
)


def require_count(key: str, value: float | None) -> None:
    """Check a count by its dotted key; null passes.

    Raises:
        ConfigurationError: It is below 1.
    """
    if value is not None and value < 1:
        raise ConfigurationError(f"{key}={value} is below 1. Did you mean 1?")


def require_number(
    key: str,
    value: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float = math.inf,
    at_most: float | None = None,
    usual: str,
) -> None:
    """Check a number by its dotted key; `usual` is a valid value to suggest.

    Raises:
        ConfigurationError: It is outside its bounds, or not finite where nothing bounds it.
    """
    low, high = (at_least if above is None else above), (below if at_most is None else at_most)
    is_high_enough = low is None or (value > low if above is not None else value >= low)
    if is_high_enough and (value < high if at_most is None else value <= high):
        return
    rules = [f"{'above' if above is not None else 'at least'} {low:g}"] if low is not None else []
    rules += [f"{'below' if at_most is None else 'at most'} {high:,.10g}"] if high < math.inf else []
    raise ConfigurationError(f"{key} must be {' and '.join(rules)}, got {value:g}. Did you mean {usual}?")
