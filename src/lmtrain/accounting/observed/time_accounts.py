"""Balance the time of a run over all of its attempts: every second on one account, repeated work as lost."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

LOST: Final = "lost"
COMPUTE: Final = "compute"
# The cost of a step; set-up, compilation, evaluation, checkpoints and logging are apart.
STEP_KINDS: Final = (COMPUTE, "data_wait", "communication", "pipeline_bubble", "expert_wait", "host_overhead")
EVALUATION: Final = "evaluation"
GENERATION: Final = "generation"
SETUP: Final = "setup"
ONCE: Final = (SETUP, "compile", LOST)  # paid once, not again by the rest of a run

# Advice for each kind of time beside computing, given where it is the largest.
LEVERS: Final[dict[str, str]] = {
    SETUP: "longer runs; where text is still prepared at the start, `lmtrain prepare` beforehand",
    "compile": "compilation by blocks compiles one of them once; a second start finds the cache in run.cache",
    "data_wait": "raise data.num_workers, or move the shards to a faster disk",
    "communication": "a larger micro batch, or fewer reductions: a strategy of whole copies, where the model fits",
    "pipeline_bubble": "more micro-batches in a step, or strategy.num_chunks above 1: stages wait less for one another",
    "expert_wait": "a larger model.experts.load_balance_weight, or fewer ranks in strategy.expert_size",
    GENERATION: "lower objective.num_new_tokens, or a larger micro batch",
    "rewards": "faster functions in objective.rewards",
    "host_overhead": "a larger micro batch gives the device more to do for each call",
    "checkpoint": "raise callbacks.checkpoint.every_seconds",
    "evaluation": "lower callbacks.validation.num_passes, or set callbacks.validation.max_tokens",
    "logging": "raise run.log_every_steps",
    LOST: "lower callbacks.checkpoint.every_seconds: what follows the last checkpoint is done again",
}


def kind_words(kind: str) -> str:
    """Name a kind of time for people."""
    return "waiting for the fullest expert" if kind == "expert_wait" else kind.replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class StopwatchReading:
    """The stopwatch at a step: seconds by kind since the attempt began, and the moment, in unix seconds.

    `tokens` carried loss since then, and `flops` were those of the real batches; None where nobody counted.
    """

    step: int
    time: float
    seconds: Mapping[str, float]
    tokens: int | None = None
    flops: float | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a run; times in unix seconds. `ended_at` of a killed one is its last sign of life.

    `num_devices` None: nobody wrote them down. `pause` is the kind of time of a pause not yet over, and its beginning.
    """

    number: int
    started_at: float
    ended_at: float
    readings: tuple[StopwatchReading, ...] = ()
    num_devices: int | None = None
    pause: tuple[str, float] | None = None

    @property
    def wall_seconds(self) -> float:
        """Return how long it lasted."""
        return self.ended_at - self.started_at

    @property
    def first_step(self) -> int | None:
        """Return the step it went on from, None where it never came to train."""
        return self.readings[0].step if self.readings else None

    @property
    def last_step(self) -> int:
        """Return the last step it is known to have done."""
        return self.readings[-1].step if self.readings else 0


def device_seconds(attempts: Sequence[Attempt], *, num_devices: int) -> float:
    """Return the time of all devices, each attempt by its own; by `num_devices` where it did not write them down."""
    return sum(each.wall_seconds * (each.num_devices or num_devices) for each in attempts)


@dataclass(frozen=True, kw_only=True)
class TimeBalance:
    """Seconds by kind, with the sum `wall_seconds`, the time of all attempts."""

    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    num_attempts: int = 0

    @property
    def wall_seconds(self) -> float:
        """Add all kinds up."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """Return the share of the clock spent on computing steps, repeated ones left out."""
        return self.share(COMPUTE)

    def share(self, kind: str) -> float:
        """Return a kind's share of the clock."""
        return self.seconds.get(kind, 0.0) / self.wall_seconds if self.wall_seconds else 0.0

    def seconds_left(
        self, *, steps_done: int, steps_left: int, passes_done: int = 0, passes_left: int = 0, at_most: float = math.inf
    ) -> float | None:
        """Return how long the rest of the run takes at its pace so far; None before its first step.

        Evaluation goes by its passes, where they are known: one comes before the first step. Set-up's and compilation's
        time does not come again. A budget of time has `at_most` seconds left, maybe less than none.
        """
        if steps_done < 1:
            return None
        apart = (*ONCE, EVALUATION) if passes_done else ONCE
        pace = sum(seconds for kind, seconds in self.seconds.items() if kind not in apart) / steps_done
        a_pass = self.seconds.get(EVALUATION, 0.0) / passes_done if passes_done else 0.0
        return min(pace * max(0, steps_left) + a_pass * passes_left, max(0.0, at_most))


def balance(attempts: Sequence[Attempt]) -> TimeBalance:
    """Add up the attempts of a run, oldest first; steps repeated by a later attempt are lost time."""
    total: defaultdict[str, float] = defaultdict(float)
    for by_kind in accounts(attempts):
        for kind, seconds in by_kind.items():
            total[kind] += seconds
    return TimeBalance(
        seconds={kind: seconds for kind, seconds in total.items() if seconds}, num_attempts=len(attempts)
    )


def accounts(attempts: Sequence[Attempt]) -> list[dict[str, float]]:
    """Return each attempt's seconds by kind, oldest first; one that never came to train repeats no step."""
    return [
        _accounts(attempt, redone_from=step) for attempt, step in zip(attempts, _redone_from(attempts), strict=True)
    ]


def mean_devices(attempts: Sequence[Attempt], *, num_devices: int) -> float:
    """Return the mean number of devices over the time of steps, `num_devices` where none was written down."""
    seconds = [sum(each.get(kind, 0.0) for kind in STEP_KINDS) for each in accounts(attempts)]
    whole = sum(seconds)
    held = sum(part * (each.num_devices or num_devices) for part, each in zip(seconds, attempts, strict=True))
    return held / whole if whole else float(num_devices)


def _redone_from(attempts: Sequence[Attempt]) -> list[int | None]:
    """Return the first step that a later attempt did again, for each; None: it did none."""
    found: list[int | None] = []
    redone_from: int | None = None
    for attempt in reversed(attempts):
        found.append(redone_from)
        if attempt.first_step is not None:
            redone_from = attempt.first_step if redone_from is None else min(redone_from, attempt.first_step)
    return found[::-1]


def trained_share(attempts: Sequence[Attempt], *, tokens_per_step: int) -> float:
    """Return the share of computed tokens with loss, 1 where it was not counted; padding has none."""
    tokens, num_steps = _counted(attempts, "tokens")
    return tokens / (num_steps * tokens_per_step) if num_steps else 1.0


def flops_per_step(attempts: Sequence[Attempt]) -> float | None:
    """Return the mean FLOPs of the real batches, None where they were not counted."""
    flops, num_steps = _counted(attempts, "flops")
    return flops / num_steps if num_steps else None


def _counted(attempts: Sequence[Attempt], name: Literal["tokens", "flops"]) -> tuple[float, int]:
    """Return what the attempts have counted, and over how many steps."""
    known = [(one.readings[0].step, [each for each in one.readings if getattr(each, name) is not None])
             for one in attempts if one.readings]  # fmt: skip
    last = [(first, readings[-1]) for first, readings in known if readings]
    return sum(getattr(each, name) for _, each in last), sum(each.step - first for first, each in last)


def _accounts(attempt: Attempt, *, redone_from: int | None) -> dict[str, float]:
    """Return an attempt's seconds by kind; time after the first repeated step (None: none) is lost."""
    kind, began = attempt.pause or ("", attempt.ended_at)
    paused = max(0.0, attempt.ended_at - began)
    if not attempt.readings:
        return {"setup": attempt.wall_seconds - paused} | ({kind: paused} if kind else {})
    last = attempt.readings[-1]
    after_last_reading = max(0.0, attempt.wall_seconds - sum(last.seconds.values()))
    if redone_from is None or redone_from >= attempt.last_step:
        paused = min(paused, after_last_reading)
        overhead = last.seconds.get("host_overhead", 0.0) + after_last_reading - paused
        seconds = {**last.seconds, "host_overhead": overhead}
        return seconds | ({kind: seconds.get(kind, 0.0) + paused} if kind else {})
    kept = [each for each in attempt.readings if each.step <= redone_from]
    counted = kept[-1].seconds if kept else attempt.readings[0].seconds
    lost = sum(last.seconds.values()) - sum(counted.values()) + after_last_reading
    return {**counted, LOST: lost}
