"""A run's speeds, each over its own seconds: of computing, of whole steps, of the clock."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from lmtrain.accounting.observed.time_accounts import COMPUTE, GENERATION, Attempt, TimeBalance
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_log import Point

OVER: Final = {
    "computing": "while computing",
    "steps": "over whole steps",
    "clock": "over the clock",
}


@dataclass(frozen=True)
class LoggedSpeed:
    """Over all timed intervals without pauses: tokens with loss a second, seconds, the share of tokens with loss."""

    tokens_per_second: float
    seconds: float
    loss_share: float


def logged_speed(folder: Path, points: Sequence[Point], attempts: Sequence[Attempt]) -> LoggedSpeed | None:
    """Return a run's speed by its log's points; the first step after each of its attempts' starts is untimed.

    It starts at the step where it left another run. In points without seconds, of an older version, every token has
    loss.
    """
    forked_at = cast("int", read_json(folder / "fork.json").get("step", 0))
    starts = [forked_at, *(each.first_step for each in attempts if each.first_step)]
    counted, tokens, seconds, before = 0.0, 0.0, 0.0, starts[0]
    known, in_order = set(starts), sorted(starts)
    for point in points:
        speed = point.metrics.get("speed/tokens_per_second")
        if speed and point.step:
            timed, tokens_per_step = point.metrics.get("speed/timed_seconds"), point.tokens / point.step
            place = bisect_left(in_order, point.step)
            since = max([before, *in_order[max(0, place - 1) : place]])  # the last start before it
            untimed = since in known and timed is not None
            steps, before = point.step - since, point.step
            counted += tokens_per_step * (steps - untimed)
            timed = tokens_per_step * steps / speed if timed is None else timed
            tokens, seconds = tokens + speed * timed, seconds + timed
    return LoggedSpeed(tokens / seconds, seconds, min(1.0, tokens / counted)) if seconds and counted else None


def full_speed(points: Sequence[Point]) -> float | None:
    """Return tokens/s at a utilization of 1, PaLM's, by the log: each attempt measures a CPU's peak anew.

    A mean over timed seconds; of points without these, of an older version, the last.
    """
    known = [
        one.metrics for one in points if one.metrics.get("speed/mfu_palm") and "speed/tokens_per_second" in one.metrics
    ]
    if not known:
        return None
    timed = sum(one.get("speed/timed_seconds", 0.0) for one in known)
    full = [one["speed/tokens_per_second"] / one["speed/mfu_palm"] for one in known]
    if not timed:
        return full[-1]
    return sum(one.get("speed/timed_seconds", 0.0) * speed for one, speed in zip(known, full, strict=True)) / timed


def speeds(tokens: int, time: TimeBalance, *, of_steps: float | None) -> dict[str, float | None]:
    """Return tokens/s over computing time, over whole steps by the log, and over the whole clock."""
    return {
        "computing": _rate(tokens, time.seconds.get(COMPUTE, 0.0)),
        "steps": of_steps,
        "clock": _rate(tokens, time.wall_seconds),
    }


def speed_words(found: Mapping[str, float | None], write: Callable[[float], str], *, time: TimeBalance) -> str:
    """Name each known speed, or a utilization, with its seconds.

    In a run of a few steps the slow first ones, in computing alone, can make that the slower: it is left out. Steps
    that learn from answers are timed without the writing of these.
    """
    steps = found.get("steps") or 0.0
    learning = {"steps": "over whole steps but for generation"} if time.seconds.get(GENERATION) else {}
    known = [
        (value, words)
        for over, words in (OVER | learning).items()
        if (value := found.get(over)) is not None and not (over == "computing" and value < steps)
    ]
    return ", ".join(f"{write(value)} {words}" for value, words in known)


def _rate(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds else None
