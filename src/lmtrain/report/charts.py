"""Line charts and time bars as SVG in the page's own colours, drawn for the width of a phone."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.markup import Markup, joined, tag

Points = Sequence[tuple[float, float]]
WIDTH: Final = 400
HEIGHT: Final = 200
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 24  # margins
MAX_POINTS: Final = 300
BAR_HEIGHT: Final = 26
COLOURS: Final = {
    "compute": "#2a78d6", "setup": "#eda100", "compile": "#4a3aa7", "data_wait": "#e87ba4",
    "communication": "#008300", "host_overhead": "#898781", "checkpoint": "#1baf7a", "evaluation": "#eb6834",
    "logging": "#c3c2b7", "preempted": "#7c5c3e", "lost": "#e34948",
}  # fmt: skip


def line_chart(points: Points, *, name: str, show: Callable[[float], str] = lambda value: f"{value:.4g}") -> Markup:
    """Draw a curve over optimizer steps; values that are no numbers are left out, and many are averaged."""
    points = thinned([point for point in points if math.isfinite(point[1])])
    if len(points) < 2:
        return Markup("")
    across = (points[0][0], points[-1][0])
    values = [value for _, value in points]
    up_ticks = ticks(min(values), max(values))
    up = (min(up_ticks[0], *values), max(up_ticks[-1], *values))
    place_x, place_y = scale(across, LEFT, WIDTH - RIGHT), scale(up, HEIGHT - BOTTOM, TOP)
    path = " ".join(f"{place_x(step):.1f},{place_y(value):.1f}" for step, value in points)
    last_step, last = points[-1]
    drawn = [
        *(_horizontal(place_y(value), show(value)) for value in up_ticks),
        *(
            tag("text", format_quantity(step), x=f"{place_x(step):.1f}", y=HEIGHT - 6, text_anchor="middle")
            for step in ticks(*across)
            if across[0] <= step <= across[1] and place_x(step) < WIDTH - RIGHT - 8
        ),
        tag("polyline", points=path, fill="none", stroke="var(--line)", stroke_width=2, stroke_linejoin="round"),
        tag("circle", cx=f"{place_x(last_step):.1f}", cy=f"{place_y(last):.1f}", r=3.5, fill="var(--line)"),
    ]
    label = f"{name}: from {show(values[0])} to {show(last)} at step {last_step:,.0f}"
    return tag("svg", *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)


def _horizontal(y: float, label: str) -> Markup:
    rule = tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", stroke="var(--rule)")
    return joined([rule, tag("text", label, x=LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end")])


def scale(domain: tuple[float, float], first: float, last: float) -> Callable[[float], float]:
    """Return the function that places a value of the domain between two positions on the page."""
    low, high = domain
    return lambda value: first + (value - low) / ((high - low) or 1.0) * (last - first)


def ticks(low: float, high: float, *, num: int = 4) -> list[float]:
    """Return about `num` round values that span from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / num
    power = 10.0 ** math.floor(math.log10(rough))
    stride = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / stride), math.ceil(high / stride)
    return [round(index * stride, 12) for index in range(first, last + 1)]


def thinned(points: Points) -> Points:
    """Return at most 300 points, each the mean of its neighbours."""
    if len(points) <= MAX_POINTS:
        return points
    edges = [round(index * len(points) / MAX_POINTS) for index in range(MAX_POINTS + 1)]
    groups = [points[start:end] for start, end in pairwise(edges)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups if group]


def time_bars(attempts: Sequence[Mapping[str, float]]) -> Markup:
    """Draw a bar for each attempt, as long as it lasted, in the colours of its kinds of time."""
    longest = max((sum(spent.values()) for spent in attempts), default=0.0) or 1.0
    drawn: list[Markup] = []
    for row, spent in enumerate(attempts):
        x = 0.0
        for kind in COLOURS:
            width = spent.get(kind, 0.0) / longest * WIDTH
            title = tag("title", f"attempt {row + 1}: {words(kind)} {format_quantity(spent.get(kind, 0.0), 'seconds')}")
            if width > 0:
                size = {"width": f"{width:.2f}", "height": BAR_HEIGHT - 6}
                drawn.append(tag("rect", title, x=f"{x:.2f}", y=row * BAR_HEIGHT, fill=COLOURS[kind], **size))
            x += width
    label = f"time of {len(attempts)} attempts by kind"
    height = len(attempts) * BAR_HEIGHT
    stretched = {"preserveAspectRatio": "none", "style": f"height:{height}px"}
    return tag("svg", *drawn, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label, **stretched)


def swatch(kind: str) -> Markup:
    """Return a kind's name after a square of its colour."""
    return joined([tag("span", "", class_="swatch", style=f"background:{COLOURS[kind]}"), words(kind)])


def words(kind: str) -> str:
    """Write a kind as words."""
    return kind.replace("_", " ")
