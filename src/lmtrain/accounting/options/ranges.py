"""The valid numbers of a setting."""

import math
from collections.abc import Mapping
from numbers import Integral
from types import MappingProxyType
from typing import Any, Final

from lmtrain.errors import ConfigurationError

Bounds = Mapping[str, Any]  # as `require_number` takes them
SHARE: Final[Bounds] = {"at_least": 0.0, "below": 1.0, "usual": "0.95"}  # of a running mean, kept at each step
RATE: Final[Bounds] = {"at_least": 0.0, "at_most": 1e4, "usual": "0.001 to 0.5"}
# Settings with one meaning in all optimizers.
COMMON: Final[Mapping[str, Bounds]] = MappingProxyType(
    {
        **dict.fromkeys(("momentum", "beta1", "beta2"), SHARE),
        "weight_decay": {"at_least": 0.0, "usual": "0.1"},
        "eps": {"at_least": 1e-38, "usual": "1e-8, as a gradient of 0 is divided by it"},
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
    """Check that a count is at least 1, by its dotted key; null passes."""
    if value is not None and value < 1:
        raise ConfigurationError(f"{key}={value} is below 1. Did you mean 1?")


def require_whole(key: str, value: Any, *, at_least: int = 1) -> None:
    """Check that a value of any type is a whole number within its bound."""
    if not isinstance(value, Integral) or value < at_least:
        raise ConfigurationError(f"{key}: must be a whole number of at least {at_least}, got {value}.")


def require_number(
    key: str,
    value: float | None,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float = math.inf,
    at_most: float | None = None,
    usual: str,
) -> None:
    """Check a number by its dotted key: its bounds, or without any that it is finite; `usual` is a value to suggest.

    Null passes.
    """
    if value is None:
        return
    low, high = (at_least if above is None else above), (below if at_most is None else at_most)
    is_high_enough = low is None or (value > low if above is not None else value >= low)
    if is_high_enough and (value < high if at_most is None else value <= high):
        return
    rules = [f"{'above' if above is not None else 'at least'} {low:g}"] if low is not None else []
    rules += [f"{'below' if at_most is None else 'at most'} {high:,.10g}"] if high < math.inf else []
    raise ConfigurationError(f"{key} must be {' and '.join(rules)}, got {value:g}. Did you mean {usual}?")
