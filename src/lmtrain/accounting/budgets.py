"""From a budget to a horizon: how many steps and tokens a run goes on for."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from lmtrain.accounting.quantities import format_quantity, typed_hours
from lmtrain.errors import ConfigurationError

# A ratio is a target, not a limit: 20 tokens per parameter is met by 19.9999, and a whole step of a million tokens
# for the last few thousand would only move the ratio away from it.
RATIO_TOLERANCE: Final = 1e-5
RATIOS: Final = frozenset({"tokens_per_parameter", "epochs"})


SECONDS_PER_HOUR: Final = 3600.0
# A larger amount is a typing error: a thousand times the largest runs'.
MOST: Final = {
    "steps": 1e12, "tokens": 1e17, "epochs": 1e9, "tokens_per_parameter": 1e12, "flops": 1e30, "hours": 1e6,
    "usd": 1e13,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of a run; the first one reached ends it.

    `epochs` counts passes over the training rows; `hours` and `usd` count all the time of held devices, over
    all attempts of the run.
    """

    steps: int | None = None
    tokens: int | None = None
    epochs: float | None = None
    tokens_per_parameter: float | None = None
    flops: float | None = None
    hours: float | None = None
    usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunSoFar:
    """A run's steps and seconds before its next start; `device_seconds` are those of all devices, by their number."""

    steps: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0

    def spent(self, time_limit: str | None) -> float:
        """Return the seconds of a budget of time that are spent."""
        return self.device_seconds if time_limit == "usd" else self.seconds


NOT_BEGUN: Final = RunSoFar()


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """Where a run ends: at the first step at or past its budget, or the last within its time. FLOPs are PaLM's.

    Under a budget of time, `time_limit` (hours or usd), `seconds` is its limit, `steps` an estimate corrected during
    the run, and `most_steps` the limit of the other budgets (None: there are none); `is_stand_in` where no speed is
    known to estimate by.
    """

    steps: int
    tokens: int
    flops: int
    limited_by: str
    seconds: float | None = None
    time_limit: str | None = None
    most_steps: int | None = None
    is_stand_in: bool = False

    @property
    def is_of_time(self) -> bool:
        """Return whether a budget of time ends the run."""
        return self.limited_by == self.time_limit

    def seconds_left(self, done: RunSoFar) -> float:
        """Return how much of its time is left; without a limit, it never ends."""
        return math.inf if self.seconds is None else self.seconds - done.spent(self.time_limit)

    def within_time(self, seconds_to: Callable[[int], float], *, done: RunSoFar) -> "Horizon":
        """Return it ending at the last step that its time is enough for, one at least; it gets no longer.

        `seconds_to` a last step are those of the whole way there, more for each later one.
        """
        least = max(1, done.steps)
        steps = least + bisect_right(range(least + 1, self.steps + 1), self.seconds_left(done), key=seconds_to)
        if steps >= self.steps:
            return self
        return replace(self.ending_at(steps), limited_by=self.time_limit)

    def ending_at(self, steps: int) -> "Horizon":
        """Return it with another last step, in proportion."""
        tokens = steps * (self.tokens // self.steps)
        return replace(self, steps=steps, tokens=tokens, flops=tokens * (self.flops // self.tokens))


# Before a speed is known a run of hours is taken to have many steps: the schedule then begins gently.
STEPS_BEFORE_SPEED_IS_KNOWN: Final = 100_000


def horizon(
    budget: Budget,
    *,
    tokens_per_step: int,
    num_active_parameters: int,
    flops_per_token: int,
    epoch_tokens: int | None = None,
    seconds_per_step: float | None = None,
    usd_per_hour: float | None = None,
    done: RunSoFar = NOT_BEGUN,
) -> Horizon:
    """Return the first step at or past the budget.

    `num_active_parameters` is the factor of tokens_per_parameter; `flops_per_token` is PaLM's; `epoch_tokens`
    are those of all rows once, padding included, None where the data is not known. The devices' seconds for a step, all
    in it, and their price together turn the hours and dollars left by `done` into steps; None of either is not known.
    Raises: ConfigurationError when no budget is set, one is not above 0, dollars are without a price, or epochs
        without data.
    """
    limits = limits_of(budget)
    seconds = _limit_seconds(limits, usd_per_hour)
    size_of_step = {
        "steps": 1,
        "tokens": tokens_per_step,
        "epochs": tokens_per_step / _tokens_of_an_epoch(limits, epoch_tokens),
        "tokens_per_parameter": tokens_per_step / num_active_parameters,
        "flops": tokens_per_step * flops_per_token,
    }
    steps = {
        name: _first_step_past(value, size_of_step[name], RATIO_TOLERANCE if name in RATIOS else 0)
        for name, value in limits.items()
        if name in size_of_step
    }
    most_steps = min(steps.values(), default=None)
    left = {name: limit - done.spent(name) for name, limit in seconds.items()}
    time_limit = min(left, key=lambda name: left[name], default=None)
    if time_limit is not None:
        speed = seconds_per_step
        ahead = STEPS_BEFORE_SPEED_IS_KNOWN if speed is None else math.floor(left[time_limit] / speed)
        steps[time_limit] = max(1, done.steps, done.steps + ahead)
    limited_by = min(steps, key=lambda name: steps[name])
    tokens = steps[limited_by] * tokens_per_step
    return Horizon(
        steps=steps[limited_by],
        tokens=tokens,
        flops=tokens * flops_per_token,
        limited_by=limited_by,
        seconds=None if time_limit is None else seconds[time_limit],
        time_limit=time_limit,
        most_steps=most_steps,
        is_stand_in=limited_by == time_limit and seconds_per_step is None,
    )


def limits_of(budget: Budget) -> dict[str, float]:
    """Return the limited amounts, at least one, and their values."""
    limits = {name: value for name, value in asdict(budget).items() if value is not None}
    if not limits:
        raise ConfigurationError(
            "budget is empty: set one of budget.tokens, budget.epochs, budget.steps, "
            "budget.tokens_per_parameter, budget.flops, budget.hours or budget.usd."
        )
    for name, value in limits.items():
        if not 0 < value <= MOST[name]:
            raise ConfigurationError(f"budget.{name}={value:g} must be above 0 and at most {MOST[name]:g}.")
    return limits


def limit_words(limits: dict[str, float]) -> dict[str, str]:
    """Return the words for limits, by their names."""
    shown = {name: typed_hours(value) if name == "hours" else format_quantity(value) for name, value in limits.items()}
    return {name: f"budget.{name}={value}" for name, value in shown.items()}


def _tokens_of_an_epoch(limits: dict[str, float], epoch_tokens: int | None) -> int:
    if "epochs" in limits and not epoch_tokens:
        raise ConfigurationError(
            f"budget.epochs={limits['epochs']:g} needs the number of training tokens, which is known once the data is "
            "prepared; run `lmtrain prepare` first, or plan with budget.epochs=null budget.tokens=1M."
        )
    return epoch_tokens or 1


def _limit_seconds(limits: dict[str, float], usd_per_hour: float | None) -> dict[str, float]:
    """Return the limits of time, in seconds."""
    seconds: dict[str, float] = {}
    if "hours" in limits:
        seconds["hours"] = limits["hours"] * SECONDS_PER_HOUR
    if "usd" in limits:
        if not usd_per_hour:
            raise ConfigurationError(
                f"budget.usd={limits['usd']:g} needs a price: set cluster.usd_per_gpu_hour to the price of one device."
            )
        seconds["usd"] = limits["usd"] / usd_per_hour * SECONDS_PER_HOUR
    return seconds


def _first_step_past(limit: float, size_of_step: float, tolerance: float) -> int:
    if isinstance(limit, int) and isinstance(size_of_step, int):
        return -(-limit // size_of_step)
    return max(1, math.ceil(limit * (1 - tolerance) / size_of_step))
