"""Plots and time bars of a page, in its colours.

Lines are an SVG that stretches with the page; labels are text next to it, so that they keep their size on a phone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from lmtrain.accounting.observed.time_accounts import kind_words
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.markup import Markup, joined, tag

Points = Sequence[tuple[float, float]]
Place = Callable[[float], float]
WIDTH: Final = 400
HEIGHT: Final = 200
MAX_POINTS: Final = 300
MOST_DIGITS: Final = 6  # more than usual, on an axis
BAR_HEIGHT: Final = 26
COLOURS: Final = {
    "compute": "#2a78d6", "setup": "#eda100", "compile": "#4a3aa7", "data_wait": "#e87ba4",
    "communication": "#008300", "host_overhead": "#898781", "checkpoint": "#1baf7a", "evaluation": "#eb6834",
    "logging": "#c3c2b7", "generation": "#00a3a3", "preempted": "#7c5c3e", "lost": "#e34948",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve with its colour, and the outline of the band between its seeds (may be empty)."""

    points: Points
    colour: str = "var(--line)"
    dash: str = "none"
    band: Points = ()


class Show(Protocol):
    """Write a value, with `more` digits than usual."""

    def __call__(self, value: float, /, *, more: int = 0) -> str: ...  # noqa: D102


def plain(value: float, /, *, more: int = 0) -> str:
    """Write a number in four digits."""
    return f"{value:.{4 + more}g}"


def distinct_labels(values: Sequence[float], show: Show) -> list[str]:
    """Write values with as many digits as they need to differ."""
    written = ([show(value, more=more) for value in values] for more in range(MOST_DIGITS))
    return next((labels for labels in written if len({*labels}) == len(labels)), [show(value) for value in values])


def line_chart(
    points: Points,
    *,
    name: str,
    show: Show = plain,
    show_across: Callable[[float], str] | None = None,
) -> Markup:
    """Draw a curve without its NaN and infinities; many values are averaged.

    `show_across` writes the labels below it; None: they are optimizer steps.
    """
    points = thinned([point for point in points if math.isfinite(point[1])])
    if len(points) < 2:
        return Markup("")
    values = [value for _, value in points]
    up_ticks = ticks(min(values), max(values))
    up = (min(up_ticks[0], *values), max(up_ticks[-1], *values))
    first, (last_place, last) = points[0][0], points[-1]
    at = f"step {last_place:,.0f}" if show_across is None else show_across(last_place)
    label = f"{name}: from {show(values[0])} to {show(last)} at {at}"
    up_labels = [*zip(up_ticks, distinct_labels(up_ticks, show), strict=True)]
    across_labels = [(place, show_across(place)) for place in ticks(first, last_place)] if show_across else None
    return plot([Line(points=points)], across=(first, last_place), up=scale(up, HEIGHT, 0.0), up_labels=up_labels,
                across_labels=across_labels, label=label)  # fmt: skip


def plot(
    lines: Sequence[Line],
    *,
    across: tuple[float, float],
    up: Place,
    up_labels: Sequence[tuple[float, str]],
    across_labels: Sequence[tuple[float, str]] | None = None,
    label: str,
) -> Markup:
    """Draw curves, the first one on top; `up` places a value between HEIGHT (the bottom) and 0."""
    place_x = scale(across, 0.0, WIDTH)
    inside = [
        *(tag("line", x1=0, x2=WIDTH, y1=_at(up(value)), y2=_at(up(value)), stroke="var(--rule)")
          for value, _ in up_labels),
        *(part for line in reversed(lines) for part in _drawn(line, place_x, up)),
    ]  # fmt: skip
    steps = across_labels or [(step, format_quantity(step)) for step in ticks(*across)]
    labels = [
        *(tag("span", text, class_="up", style=f"top:{up(value) / HEIGHT:.2%}") for value, text in up_labels),
        *(tag("span", text, class_="across", style=f"left:{place_x(step) / WIDTH:.2%}")
          for step, text in steps if across[0] <= step <= across[1]),
        *(tag("span", "", class_="end", style=_end(line, place_x, up)) for line in reversed(lines)),
    ]  # fmt: skip
    drawn = tag("svg", *inside, viewBox=f"0 0 {WIDTH} {HEIGHT}", preserveAspectRatio="none", aria_hidden="true")
    gutter = f"--gutter:{max(len(text) for _, text in up_labels)}ch"
    return tag("div", drawn, *labels, class_="plot", role="img", aria_label=label, style=gutter)


def _drawn(line: Line, place_x: Place, place_y: Place) -> list[Markup]:
    path = {name: " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
            for name, points in (("band", line.band), ("curve", line.points))}  # fmt: skip
    band = [tag("polygon", points=path["band"], fill=line.colour, fill_opacity=0.18)] if line.band else []
    ink = {"stroke": line.colour, "stroke_width": 2, "stroke_linejoin": "round", "stroke_dasharray": line.dash}
    return [*band, tag("polyline", points=path["curve"], fill="none", **ink)]


def _end(line: Line, place_x: Place, place_y: Place) -> str:
    x, y = line.points[-1]
    return f"left:{place_x(x) / WIDTH:.2%};top:{place_y(y) / HEIGHT:.2%};background:{line.colour}"


def _at(place: float) -> str:
    return f"{place:.1f}"


def scale(domain: tuple[float, float], first: float, last: float) -> Place:
    """Return a function from values of the domain to the positions between two on the page."""
    low, high = domain
    return lambda value: first + (value - low) / ((high - low) or 1.0) * (last - first)


def ticks(low: float, high: float, *, num: int = 4) -> list[float]:
    """Return about `num` round values from low to high."""
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


def time_bars(attempts: Sequence[Mapping[str, float]], *, kinds: Sequence[str]) -> Markup:
    """Draw a bar for each attempt, as long as it lasted, in its kinds' colours and the order of `kinds`."""
    longest = max((sum(spent.values()) for spent in attempts), default=0.0) or 1.0
    drawn: list[Markup] = []
    for row, spent in enumerate(attempts):
        x = 0.0
        for kind in kinds:
            width = spent.get(kind, 0.0) / longest * WIDTH
            title = tag(
                "title", f"attempt {row + 1}: {kind_words(kind)} {format_quantity(spent.get(kind, 0.0), 'seconds')}"
            )
            if width > 0:
                size = {"width": f"{width:.2f}", "height": BAR_HEIGHT - 6}
                drawn.append(tag("rect", title, x=f"{x:.2f}", y=row * BAR_HEIGHT, fill=COLOURS[kind], **size))
            x += width
    label = f"time of {format_count(len(attempts), 'attempt')} by kind"
    height = len(attempts) * BAR_HEIGHT
    stretched = {"preserveAspectRatio": "none", "style": f"height:{height}px"}
    return tag("svg", *drawn, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label, **stretched)


def swatch(kind: str) -> Markup:
    """Return a kind's name after a square of its colour."""
    return joined([square(COLOURS[kind]), kind_words(kind)])


def square(colour: str) -> Markup:
    """Return a square of a colour, for the name of its curve or bar."""
    return joined([tag("span", "■", class_="swatch", style=f"color:{colour}"), Markup("&nbsp;")])
