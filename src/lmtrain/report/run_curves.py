"""A run's curves for its page, over tokens."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from lmtrain.accounting.observed.metric_names import (
    EVALUATIONS,
    TRAIN_LOSS,
    VALIDATION_BYTES,
    VALIDATION_TOKENS,
    speed_name,
)
from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.charts import Points, Show, line_chart, plain
from lmtrain.report.markup import Markup, section, tag
from lmtrain.report.runs.facts import RunRecord
from lmtrain.report.runs.held_out import comparable
from lmtrain.tracking.run_log import Point


def _bytes(value: float) -> str:
    return format_quantity(value, "bytes")


MOST_MEMORY: Final = "memory/peak_bytes"  # each process counts from 0; the run's is the highest so far
# Metric, title with its unit, and how its values are written.
OTHERS: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("train/lr", "Learning rate", plain),
    ("train/gradient_norm", "Gradient norm", plain),
    ("train/skipped_steps", "Steps skipped as spikes", plain),
    ("speed/tokens_per_second", "Speed, {}", format_quantity),
    ("speed/mfu_palm", "MFU (PaLM), of the peak", "{:.1%}".format),
    (MOST_MEMORY, "Most memory so far, bytes", _bytes),
    ("communication/sent_bytes", "Sent deltas, bytes", _bytes),
)
HELD_OUT: Final = ("validation/", *EVALUATIONS)
OF_A_TASK: Final = ("reward/", "rollout/", "policy/", "preference/", "distillation/")  # of the steps of a task
NO_CURVES: Final = {VALIDATION_BYTES, VALIDATION_TOKENS}


def curve_sections(record: RunRecord) -> list[Markup]:
    """Return the sections of a run's curves; those without points are left out."""
    points, own = record.points, record.own
    losses = [point for point in points if TRAIN_LOSS in point.metrics]
    of_task = _drawn(points, OF_A_TASK)
    name = f"Training loss, {'of the task' if of_task else 'nats per token'}, over tokens"
    training = [_chart(_curve(losses, TRAIN_LOSS), name=name)]
    curves = {name: _curve(points, name) for name, *_ in OTHERS}
    curves[MOST_MEMORY] = [*accumulate(curves[MOST_MEMORY], lambda old, new: (new[0], max(old[1], new[1])))]
    others = [
        _chart(curves[metric], name=title.format(speed_name(record.loss_share)), show=show)
        for metric, title, show in OTHERS
    ]
    inherited = []
    if own.fork is not None:
        whose = f"{format_quantity(own.inherited_tokens)} of the tokens are of {own.fork.run_words}"
        inherited = [tag("p", f"{whose}; time is this run's own.")]
    found = [
        section("Training loss", *_grid(training), *inherited),
        section("Rewards and preferences, over tokens", *_grid(of_task)),
        section("Held-out text and benchmarks, over tokens", *_grid(_drawn(comparable(points), HELD_OUT))),
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


def _curve(points: Sequence[Point], name: str) -> Points:
    """Return a metric over tokens."""
    return [(float(point.tokens), point.metrics[name]) for point in points if name in point.metrics]


def _chart(curve: Points, *, name: str, show: Show = plain) -> Markup:
    chart = line_chart(curve, name=name, show=show)
    return tag("div", tag("h3", name), chart) if chart else Markup("")
