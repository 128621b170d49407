"""A run's curves for its page: the loss over tokens, hours, FLOPs and dollars, and all else over tokens."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import EVALUATIONS, TRAIN_LOSS, VALIDATION_BYTES, VALIDATION_TOKENS
from lmtrain.accounting.observed.speed_names import speed_name
from lmtrain.accounting.observed.time_accounts import Attempt, goodput_so_far
from lmtrain.accounting.quantities import format_flops, format_quantity
from lmtrain.report.charts import Show, line_chart, plain
from lmtrain.report.markup import Markup, tag
from lmtrain.report.runs.attempts import own_steps, read_attempts
from lmtrain.report.runs.clock import on_the_clock
from lmtrain.report.runs.comparable_scores import comparable, left_out_words
from lmtrain.report.runs.speeds import logged_speed
from lmtrain.report.web_page import section
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.fork import read_fork
from lmtrain.tracking.run_log import Point


def _percent(value: float, /, *, more: int = 0) -> str:
    return f"{value:.{1 + more}%}"


def _count(value: float, /, *, more: int = 0) -> str:
    return format_quantity(value, digits=1 + more)


def _bytes(value: float, /, *, more: int = 0) -> str:
    return format_quantity(value, "bytes", digits=1 + more)


SPEED: Final = "speed/tokens_per_second"
GOODPUT: Final = "speed/goodput"  # logged of an attempt; drawn of all of them
# Metric, title with its unit, and the writing of its values.
OTHERS: Final[tuple[tuple[str, str, Show], ...]] = (
    ("train/lr", "Learning rate", plain),
    ("train/gradient_norm", "Gradient norm", plain),
    ("train/skipped_steps", "Steps skipped as spikes", "{:.0f}".format),
    (SPEED, "Speed, {}", _count),
    ("speed/mfu_palm", "MFU (PaLM), of the peak", _percent),
    (GOODPUT, "Goodput so far, computing of the clock", _percent),
    ("memory/peak_bytes", "Most memory so far, bytes", _bytes),
    ("communication/sent_bytes", "Sent deltas, bytes", _bytes),
)
PEAKS: Final = ("memory/peak_bytes",)  # each process begins anew; the run's is the highest of all its attempts
HELD_OUT: Final = ("validation/", *EVALUATIONS)
OF_A_TASK: Final = ("reward/", "rollout/", "policy/", "preference/")  # of the steps of task=grpo and task=dpo
NO_CURVES: Final = (VALIDATION_BYTES, VALIDATION_TOKENS)
HELD_OUT_TITLE: Final = "Held-out text and benchmarks, over tokens"
TASK_TITLE: Final = "Rewards and preferences, over tokens"
CLOCK_GAP: Final = 1e-9


@dataclass(frozen=True, kw_only=True)
class Across:
    """What a loss is drawn over: its name and unit, each point's place, and the writing of places."""

    name: str
    places: Sequence[float]
    show: Callable[[float], str]


def curve_sections(folder: Path, points: Sequence[Point]) -> list[Markup]:
    """Return the sections of a run's curves; those without points are left out."""
    losses = [point for point in points if TRAIN_LOSS in point.metrics]
    plan = read_json(folder / "plan.json")
    own = own_steps(plan, [], read_fork(folder))
    attempts = read_attempts(folder)
    speed = logged_speed(folder, points, attempts)
    axes = _axes(losses, points, plan, attempts)
    of_task = _drawn(points, OF_A_TASK)
    unit = "of the task" if of_task else "nats per token"
    against = [_chart([(x, point.metrics[TRAIN_LOSS]) for x, point in zip(across.places, losses, strict=True)],
                      name=f"Training loss, {unit}, over {across.name}", show=plain, show_across=across.show)
               for across in axes]  # fmt: skip
    measured = _drawn(comparable(points), HELD_OUT)
    goodput = [(float(step * own.tokens_per_step), share) for step, share in goodput_so_far(attempts)]
    others = [
        _chart(
            goodput if name == GOODPUT else _curve(points, name),
            name=title.format(speed_name(speed.loss_share if speed else 1.0)),
            show=show,
            show_across=format_quantity,
        )
        for name, title, show in OTHERS
    ]
    found = {
        "Training loss": against,
        TASK_TITLE: of_task,
        HELD_OUT_TITLE: measured,
        "Other curves, over tokens": others,
    }
    said = {HELD_OUT_TITLE: [tag("p", words) for words in [left_out_words(points)] if words]}
    if own.fork is not None:
        whose = f"{format_quantity(own.inherited_tokens)} of the tokens, with their FLOPs, are of {own.fork.run_words}"
        said["Training loss"] = [tag("p", f"{whose}; time and dollars are this run's own.")]
    parts = [section(title, *_grid(drawn), *said.get(title, ())) for title, drawn in found.items()]
    return [part for title, part in zip(found, parts, strict=True) if title != TASK_TITLE or of_task]


def _drawn(points: Sequence[Point], names: tuple[str, ...]) -> list[Markup]:
    """Draw the metrics that begin so, in the order of their names."""
    known = sorted({name for point in points for name in point.metrics if name.startswith(names)} - {*NO_CURVES})
    return [_chart(_curve(points, name), name=_title(name), show=plain, show_across=format_quantity) for name in known]


def _grid(drawn: Sequence[Markup]) -> list[Markup]:
    shown = [one for one in drawn if one]
    return [tag("div", *shown, class_="grid")] if shown else []


def _axes(
    losses: Sequence[Point],
    points: Sequence[Point],
    plan: Mapping[str, Any],
    attempts: Sequence[Attempt],
) -> list[Across]:
    """Return tokens, time, FLOPs and dollars of each logged loss, as far as they are known."""
    tokens = [float(point.tokens) for point in losses]
    found = [Across(name="tokens", places=tokens, show=format_quantity)]
    if losses:
        hours = [seconds / 3600 for seconds in on_the_clock(losses, attempts, began=points[0].time)]
        last = hours[-1]
        unit, factor = ("hours", 1.0) if last >= 1 else ("minutes", 60.0) if last >= 1 / 30 else ("seconds", 3600.0)
        found.append(Across(name=f"{unit} of the clock", places=[factor * hour for hour in hours], show=plain))
    flops = _number(plan, "flops_per_token", "palm")
    if flops:
        found.append(Across(name="FLOPs (PaLM)", places=[flops * count for count in tokens], show=format_flops))
    if losses and (dollars := _dollars(losses, points, attempts)):
        found.append(Across(name="dollars", places=dollars, show="${:.3g}".format))
    return found


def _dollars(losses: Sequence[Point], points: Sequence[Point], attempts: Sequence[Attempt]) -> list[float]:
    """Return the dollars until each loss by the clock, set-up's before the first step; none without a price."""
    priced = [point for point in points if point.metrics.get("cost/usd")]
    clock = on_the_clock(priced, attempts, began=points[0].time)
    known = [(0.0, 0.0), *zip(clock, (point.metrics["cost/usd"] for point in priced), strict=True)]
    return [_between(known, place) for place in on_the_clock(losses, attempts, began=points[0].time)] if priced else []


def _between(known: Sequence[tuple[float, float]], place: float) -> float:
    """Return the value at a place between known ones in rising order, by a straight line."""
    index = min(bisect_left(known, (place, -math.inf)), len(known) - 1)
    (left, low), (right, high) = known[max(0, index - 1)], known[index]
    return low + (high - low) * min(1.0, max(0.0, (place - left) / (right - left or CLOCK_GAP)))


def _curve(points: Sequence[Point], name: str) -> list[tuple[float, float]]:
    """Return a metric over tokens."""
    curve = [(float(point.tokens), point.metrics[name]) for point in points if name in point.metrics]
    return [*accumulate(curve, lambda before, now: (now[0], max(before[1], now[1])))] if name in PEAKS else curve


def _chart(
    curve: Sequence[tuple[float, float]], *, name: str, show: Show, show_across: Callable[[float], str]
) -> Markup:
    chart = line_chart(curve, name=name, show=show, show_across=show_across)
    return tag("div", tag("h3", name), chart) if chart else Markup("")


def _title(name: str) -> str:
    """Write a held-out metric with its unit."""
    text = name.replace("/", ", ").replace("_", " ")
    return f"{text[:1].upper()}{text[1:]}{', nats per token' if name.endswith('loss') else ''}"


def _number(plan: Mapping[str, Any], *names: str) -> float | None:
    found: Any = plan
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return float(found) if isinstance(found, int | float) else None
