"""A run's curves for its page: the loss over tokens, time, FLOPs and dollars, and all other metrics over tokens."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import (
    EVALUATIONS,
    TRAIN_LOSS,
    VALIDATION_BYTES,
    VALIDATION_TOKENS,
    speed_name,
)
from lmtrain.accounting.observed.time_accounts import Attempt, goodput_so_far
from lmtrain.accounting.quantities import format_flops, format_quantity
from lmtrain.report.charts import Points, Show, line_chart, plain
from lmtrain.report.compared_runs import between
from lmtrain.report.markup import Markup, section, tag
from lmtrain.report.runs.attempts import logged_speed, on_the_clock, own_steps, read_attempts
from lmtrain.report.runs.held_out import comparable, left_out_words
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.fork import read_fork
from lmtrain.tracking.run_log import Point


def _percent(value: float, /, *, more: int = 0) -> str:
    return f"{value:.{1 + more}%}"


def _count(value: float, /, *, more: int = 0) -> str:
    return format_quantity(value, digits=1 + more)


def _bytes(value: float, /, *, more: int = 0) -> str:
    return format_quantity(value, "bytes", digits=1 + more)


GOODPUT: Final = "speed/goodput"  # logged of one attempt, drawn of all of them
MOST_MEMORY: Final = "memory/peak_bytes"  # each process counts from 0; the run's is the highest so far
# Metric, title with its unit, and how its values are written.
OTHERS: Final[tuple[tuple[str, str, Show], ...]] = (
    ("train/lr", "Learning rate", plain),
    ("train/gradient_norm", "Gradient norm", plain),
    ("train/skipped_steps", "Steps skipped as spikes", "{:.0f}".format),
    ("speed/tokens_per_second", "Speed, {}", _count),
    ("speed/mfu_palm", "MFU (PaLM), of the peak", _percent),
    (GOODPUT, "Goodput so far, computing of the clock", _percent),
    (MOST_MEMORY, "Most memory so far, bytes", _bytes),
    ("communication/sent_bytes", "Sent deltas, bytes", _bytes),
)
HELD_OUT: Final = ("validation/", *EVALUATIONS)
OF_A_TASK: Final = ("reward/", "rollout/", "policy/", "preference/")  # of the steps of task=grpo and task=dpo
NO_CURVES: Final = {VALIDATION_BYTES, VALIDATION_TOKENS}


def curve_sections(folder: Path, points: Sequence[Point]) -> list[Markup]:
    """Return the sections of a run's curves; those without points are left out."""
    plan = read_json(folder / "plan.json")
    own, attempts = own_steps(plan, [], read_fork(folder)), read_attempts(folder)
    speed = logged_speed(folder, points, attempts)
    losses = [point for point in points if TRAIN_LOSS in point.metrics]
    of_task = _drawn(points, OF_A_TASK)
    unit = "of the task" if of_task else "nats per token"
    training = [
        _chart([(x, point.metrics[TRAIN_LOSS]) for x, point in zip(places, losses, strict=True)],
               name=f"Training loss, {unit}, over {name}", show_across=show)
        for name, places, show in _axes(losses, points, plan, attempts)
    ]  # fmt: skip
    goodput = [(float(step * own.tokens_per_step), share) for step, share in goodput_so_far(attempts)]
    others = [
        _chart(
            goodput if metric == GOODPUT else _curve(points, metric),
            name=title.format(speed_name(speed.loss_share if speed else 1.0)),
            show=show,
        )
        for metric, title, show in OTHERS
    ]
    inherited = []
    if own.fork is not None:
        whose = f"{format_quantity(own.inherited_tokens)} of the tokens, with their FLOPs, are of {own.fork.run_words}"
        inherited = [tag("p", f"{whose}; time and dollars are this run's own.")]
    left_out = [tag("p", words) for words in [left_out_words(points)] if words]
    found = [
        section("Training loss", *_grid(training), *inherited),
        section("Rewards and preferences, over tokens", *_grid(of_task)),
        section("Held-out text and benchmarks, over tokens", *_grid(_drawn(comparable(points), HELD_OUT)), *left_out),
        section("Other curves, over tokens", *_grid(others)),
    ]
    return [part for part in found if part]


def _grid(drawn: Sequence[Markup]) -> list[Markup]:
    shown = [one for one in drawn if one]
    return [tag("div", *shown, class_="grid")] if shown else []


def _drawn(points: Sequence[Point], prefixes: tuple[str, ...]) -> list[Markup]:
    """Draw the metrics with these prefixes, in the order of their names."""
    known = sorted({name for point in points for name in point.metrics if name.startswith(prefixes)} - NO_CURVES)

    def title(name: str) -> str:
        text = name.replace("/", ", ").replace("_", " ")
        return f"{text[:1].upper()}{text[1:]}{', nats per token' if name.endswith('loss') else ''}"

    return [_chart(_curve(points, name), name=title(name)) for name in known]


def _axes(
    losses: Sequence[Point], points: Sequence[Point], plan: Mapping[str, Any], attempts: Sequence[Attempt]
) -> list[tuple[str, Sequence[float], Callable[[float], str]]]:
    """Return each known axis of the loss: its name and unit, each loss's place, and how places are written."""
    if not losses:
        return []
    tokens = [float(point.tokens) for point in losses]
    clock = on_the_clock(losses, attempts, began=points[0].time)
    last = clock[-1]
    unit, seconds = ("hours", 3600) if last >= 3600 else ("minutes", 60) if last >= 120 else ("seconds", 1)
    found: list[tuple[str, Sequence[float], Callable[[float], str]]] = [
        ("tokens", tokens, format_quantity),
        (f"{unit} of the clock", [place / seconds for place in clock], plain),
    ]
    flops_per_token = plan.get("flops_per_token")
    flops = flops_per_token.get("palm") if isinstance(flops_per_token, dict) else None
    if flops:
        found.append(("FLOPs (PaLM)", [flops * count for count in tokens], format_flops))
    priced = [point for point in points if point.metrics.get("cost/usd")]
    if priced:  # by the clock: set-up costs before the first step
        paid = on_the_clock(priced, attempts, began=points[0].time)
        known = [(0.0, 0.0), *zip(paid, (point.metrics["cost/usd"] for point in priced), strict=True)]
        found.append(("dollars", [between(known, place) for place in clock], "${:.3g}".format))
    return found


def _curve(points: Sequence[Point], name: str) -> Points:
    """Return a metric over tokens."""
    curve = [(float(point.tokens), point.metrics[name]) for point in points if name in point.metrics]
    return [*accumulate(curve, lambda old, new: (new[0], max(old[1], new[1])))] if name == MOST_MEMORY else curve


def _chart(
    curve: Points, *, name: str, show: Show = plain, show_across: Callable[[float], str] = format_quantity
) -> Markup:
    chart = line_chart(curve, name=name, show=show, show_across=show_across)
    return tag("div", tag("h3", name), chart) if chart else Markup("")
