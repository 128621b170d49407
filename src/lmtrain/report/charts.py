"""Charts in SVG for a page, with labels that keep their size on a phone."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from lmtrain.accounting.observed.time_accounts import kind_words
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.markup import Markup, joined, tag

Points = Sequence[tuple[float, float]]
Place = Callable[[float], float]
Show = Callable[[float], str]
WIDTH: Final = 400
HEIGHT: Final = 200
MAX_POINTS: Final = 300
BAR_HEIGHT: Final = 26
COLOURS: Final = {
    "compute": "#2a78d6", "setup": "#eda100", "compile": "#4a3aa7", "data_wait": "#e87ba4",
    "communication": "#008300", "host_overhead": "#898781", "checkpoint": "#1baf7a", "evaluation": "#eb6834",
    "logging": "#c3c2b7", "generation": "#00a3a3", "rewards": "#d3459b", "lost": "#e34948",
    "pipeline_bubble": "#7a5230", "expert_wait": "#6d9a00",
}  # fmt: skip
INKS: Final = (
    "#2a78d6", "#eb6834", "#008300", "#e34948", "#4a3aa7", "#1baf7a", "#c98500", "#d3459b", "#6b6a66", "#0093a8",
    "#7a5230", "#6d9a00", "#9a6be0", "#b00058",
)  # fmt: skip
DASHES: Final = ("none", "7 3", "2 3")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve with its colour, the outline of the band between its seeds, and its name."""

    points: Points
    colour: str = "var(--line)"
    dash: str = "none"
    band: Points = ()
    name: str = ""


def ink_of(index: int) -> tuple[str, str]:
    """Return the colour and the dash of a curve; they repeat after all pairs are used."""
    return INKS[index % len(INKS)], DASHES[index // len(INKS) % len(DASHES)]


def plain(value: float, /) -> str:
    """Write a number in four digits."""
    return f"{value:.4g}"


def line_chart(points: Points, *, name: str, show: Show = plain) -> Markup:
    """Draw a curve over tokens without its NaN and infinities; many values are averaged."""
    points = thinned([point for point in points if math.isfinite(point[1])])
    if len(points) < 2:
        return Markup("")
    (_, first), (tokens, last) = points[0], points[-1]
    label = f"{name}: from {show(first)} to {show(last)} at {format_quantity(tokens)} tokens"
    return plot([Line(points=points)], label=label, show=show)


def plot(lines: Sequence[Line], *, label: str, show: Show = plain, top: float = math.inf) -> Markup:
    """Draw curves over tokens, the first one on top; values above `top` are drawn at it."""
    places = [x for line in lines for x, _ in line.points]
    values = [min(y, top) for line in lines for _, y in (*line.points, *line.band)]
    across, up_ticks = (min(places), max(places)), ticks(min(values), max(values))
    place_x = scale(across, 0.0, WIDTH)
    place_y = scale((min(up_ticks[0], *values), max(up_ticks[-1], *values)), HEIGHT, 0.0)

    def drawn_y(value: float) -> float:
        return place_y(min(value, top))

    grid = [
        tag("line", x1=0, x2=WIDTH, y1=f"{place_y(value):.1f}", y2=f"{place_y(value):.1f}", stroke="var(--rule)")
        for value in up_ticks
    ]
    shapes = [part for line in reversed(lines) for part in _shapes(line, place_x, drawn_y)]
    drawn = tag("svg", *grid, *shapes, viewBox=f"0 0 {WIDTH} {HEIGHT}", preserveAspectRatio="none", aria_hidden="true")
    labels = [tag("span", show(each), class_="up", style=f"top:{place_y(each) / HEIGHT:.2%}") for each in up_ticks]
    labels += [
        tag("span", format_quantity(each), class_="across", style=f"left:{place_x(each) / WIDTH:.2%}")
        for each in ticks(*across)
        if across[0] <= each <= across[1]
    ]
    gutter = f"--gutter:{max(len(show(value)) for value in up_ticks)}ch"
    return tag("div", drawn, *labels, class_="plot", role="img", aria_label=label, style=gutter)


def _shapes(line: Line, place_x: Place, place_y: Place) -> list[Markup]:
    def path(points: Points) -> str:
        return " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)

    band = [tag("polygon", points=path(line.band), fill=line.colour, fill_opacity=0.18)] if line.band else []
    ink = {"stroke": line.colour, "stroke_width": 2, "stroke_linejoin": "round", "stroke_dasharray": line.dash}
    return [*band, tag("polyline", points=path(line.points), fill="none", **ink)]


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
            seconds = spent.get(kind, 0.0)
            width = seconds / longest * WIDTH
            title = tag("title", f"attempt {row + 1}: {kind_words(kind)} {format_quantity(seconds, 'seconds')}")
            if width > 0:
                size = {"width": f"{width:.2f}", "height": BAR_HEIGHT - 6}
                drawn.append(tag("rect", title, x=f"{x:.2f}", y=row * BAR_HEIGHT, fill=COLOURS[kind], **size))
            x += width
    label = f"time of {format_count(len(attempts), 'attempt')} by kind"
    height = len(attempts) * BAR_HEIGHT
    stretched = {"preserveAspectRatio": "none", "style": f"height:{height}px"}
    return tag("svg", *drawn, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label, **stretched)


def square(colour: str) -> Markup:
    """Return a square of a colour, for the name of its curve or bar."""
    return joined([tag("span", "■", class_="swatch", style=f"color:{colour}"), Markup("&nbsp;")])
