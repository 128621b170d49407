"""The share of each key in the spread of a search's scores: Optuna's fANOVA (proceedings.mlr.press/v32/hutter14.html).

A forest of trees learns the score from the values, and its variance is divided among the keys. From few trials this is
a guess, so a share comes with a range: of five repeats, each without another fifth of the trials.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from lmtrain.accounting.quantities import Unit, parse_quantity, unit_of
from lmtrain.errors import ConfigurationError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

NUM_PARTS: Final = 5
LEAST_TRIALS: Final = 2 * NUM_PARTS
WIDE: Final = 10.0  # numbers with a larger ratio of largest to smallest are placed by their logarithm
PACKAGES: Final = ("optuna", "sklearn")


@dataclass(frozen=True)
class Axis:
    """A key's values: numbers of its `unit`, or a list's `names` in order."""

    low: float
    high: float
    is_log: bool = False
    names: tuple[str, ...] = ()
    unit: Unit = "count"

    def number(self, value: str) -> float:
        """Return a value's number, NaN if it is not one."""
        found = _number(value, self.unit)
        return math.nan if found is None else found

    def place(self, value: str) -> float:
        """Return where a value lies, from 0 to 1."""
        if self.names:
            return (self.names.index(value) + 0.5) / len(self.names)
        low, high, at = (math.log(x) if self.is_log else x for x in (self.low, self.high, self.number(value)))
        return 0.5 if high == low else (at - low) / (high - low)


@dataclass(frozen=True)
class Importance:
    """A key's share of the scores' variance, from 0 to 1, and its range over the repeats."""

    share: float
    low: float
    high: float


def axes_of(choices: Sequence[Mapping[str, str]], space: Mapping[str, str] | None = None) -> dict[str, Axis]:
    """Return the axis of each key with several values: numbers between their ends, all else as a list.

    `space` holds the keys' spaces as in overrides, which say if a logarithm is drawn.
    """
    found: dict[str, Axis] = {}
    for key in dict.fromkeys(key for values in choices for key in values):
        words = [*dict.fromkeys(values[key] for values in choices if key in values)]
        numbers = [number for word in words if (number := _number(word, unit_of(key))) is not None]
        if len(words) < 2:
            continue
        if len(numbers) < len(words):
            found[key] = Axis(0.0, 1.0, names=tuple(sorted(words)))
        elif max(numbers) > min(numbers):
            typed = (space or {}).get(key, "")
            is_wide = min(numbers) > 0 and max(numbers) >= WIDE * min(numbers)
            is_log = typed.startswith("tag(log") if "interval(" in typed else is_wide
            found[key] = Axis(min(numbers), max(numbers), is_log=is_log, unit=unit_of(key))
    return found


def importances(
    choices: Sequence[Mapping[str, str]], scores: Sequence[float], *, space: Mapping[str, str] | None = None
) -> dict[str, Importance]:
    """Return each key's importance, the largest first; empty below ten trials, two keys, or without the packages."""
    axes = axes_of(choices, space)
    if len(axes) < 2 or len(choices) < LEAST_TRIALS or any(find_spec(package) is None for package in PACKAGES):
        return {}
    trials = [_frozen(values, score, axes) for values, score in zip(choices, scores, strict=True)]
    shares = _shares(trials)
    parts = [_shares([t for i, t in enumerate(trials) if i % NUM_PARTS != p]) for p in range(NUM_PARTS)]
    return {
        key: Importance(share, min(found), max(found))
        for key, share in shares.items()
        if (found := [share, *(part.get(key, 0.0) for part in parts)])
    }


def _shares(trials: "Sequence[FrozenTrial]") -> dict[str, float]:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    study.add_trials(trials)
    if len({trial.value for trial in trials}) == 1:
        return {}
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=1))
    return {key: float(share) for key, share in found.items()}


def _frozen(values: Mapping[str, str], score: float, axes: Mapping[str, Axis]) -> "FrozenTrial":
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
    from optuna.trial import create_trial

    distributions: dict[str, BaseDistribution] = {
        key: CategoricalDistribution(axis.names)
        if axis.names
        else FloatDistribution(axis.low, axis.high, log=axis.is_log)
        for key, axis in axes.items()
        if key in values
    }
    params: dict[str, Any] = {
        key: values[key] if axes[key].names else axes[key].number(values[key]) for key in distributions
    }
    return create_trial(params=params, distributions=distributions, value=score)


def _number(word: str, unit: Unit) -> float | None:
    try:
        number = float(word)
    except ValueError:
        try:
            number = float(parse_quantity(word, unit=unit))
        except ConfigurationError:
            return None
    return number if math.isfinite(number) else None
