"""The curves of all choices in one SVG file of its own, each named where it ends, with the spread of its seeds."""

from collections.abc import Sequence
from typing import Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.charts import Place, plain, scale, ticks, told_apart
from lmtrain.report.comparing.choices import Choice
from lmtrain.report.comparing.compared_run import Curve
from lmtrain.report.comparing.comparison import Comparison
from lmtrain.report.comparing.comparison_axes import ComparisonAxes, band, comparison_axes
from lmtrain.report.markup import Markup, tag

Ink = tuple[str, str]
PLOT_RIGHT: Final = 680  # where the curves end and their names begin
CHARACTER: Final = 7  # of a name
LINE_HEIGHT: Final = 16
LEFT, TOP, BOTTOM = 60, 40, 48  # margins
LEAST_HEIGHT: Final = 480
COLOURS: Final = (
    "#2a78d6", "#eb6834", "#008300", "#e34948", "#4a3aa7", "#1baf7a", "#c98500", "#d3459b", "#6b6a66", "#0093a8",
    "#7a5230", "#6d9a00", "#9a6be0", "#b00058",
)  # fmt: skip
DASHES: Final = ("none", "7 3", "2 3")
INK, DIM, RULE, PAGE = "#0b0b0b", "#52514e", "#e1e0d9", "#fcfcfb"


def comparison_chart(comparison: Comparison) -> Markup:
    """Draw the mean curve of every choice over the tokens, whole from its beginning."""
    choices = comparison.choices
    height = max(LEAST_HEIGHT, TOP + BOTTOM + LINE_HEIGHT * len(choices))
    names = [f"{choice.final.mean:.{comparison.decimals}f}  {choice.label}" for choice in choices]
    width = PLOT_RIGHT + 34 + CHARACTER * max(map(len, names))
    axes = comparison_axes(choices)
    place_x = scale((0.0, axes.most_tokens), LEFT, PLOT_RIGHT)
    place_y = axes.place(bottom=height - BOTTOM, top=TOP)
    title = comparison.curves_title
    drawn = [
        tag("rect", x=0, y=0, width=width, height=height, fill=PAGE),
        *_grid(axes, place_x, place_y, height),
        tag("text", title, x=LEFT, y=22, fill=INK, font_weight="bold"),
        tag("text", "tokens trained on", x=(LEFT + PLOT_RIGHT) / 2, y=height - 10, fill=DIM, text_anchor="middle"),
    ]
    heights = apart([place_y(choice.final.mean) for choice in choices], low=TOP, high=height - BOTTOM)
    for index, (choice, name, label_y) in enumerate(zip(choices, names, heights, strict=True)):
        drawn += _curve(choice, ink_of(index), place_x, place_y)
        drawn += _end(choice, name, ink_of(index)[0], place_x, place_y, label_y)
    style = {"font_family": "system-ui, sans-serif", "font_size": 12}
    return tag("svg", *drawn, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", role="img",
               aria_label=title, **style)  # fmt: skip


def _grid(axes: ComparisonAxes, place_x: Place, place_y: Place, height: int) -> list[Markup]:
    drawn: list[Markup] = []
    for value, label in zip(axes.labels, told_apart(axes.labels, plain), strict=True):
        y = f"{place_y(value):.1f}"
        dash = {"stroke_dasharray": "2 4"} if axes.is_broken and value == axes.cut else {}
        drawn.append(tag("line", x1=LEFT, x2=PLOT_RIGHT, y1=y, y2=y, stroke=RULE, **dash))
        drawn.append(tag("text", label, x=LEFT - 8, y=f"{place_y(value) + 4:.1f}", fill=DIM, text_anchor="end"))
    if axes.is_broken:  # where no curve is any more
        place = {"x": PLOT_RIGHT, "y": f"{place_y(axes.cut) - 6:.1f}"}
        drawn.append(tag("text", axes.words, fill=DIM, text_anchor="end", **place))
    for value in ticks(0.0, axes.most_tokens):
        if value <= axes.most_tokens:
            place = {"x": f"{place_x(value):.1f}", "y": height - BOTTOM + 18}
            drawn.append(tag("text", format_quantity(value), fill=DIM, text_anchor="middle", **place))
    return drawn


def ink_of(index: int) -> Ink:
    """Return a colour and a dash of no other curve, until all pairs are used."""
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def _curve(choice: Choice, ink: Ink, place_x: Place, place_y: Place) -> list[Markup]:
    """Draw a choice: the band between its seeds, and its mean."""
    colour, dash = ink
    drawn: list[Markup] = []
    if outline := band(choice):
        drawn.append(tag("polygon", points=_points(outline, place_x, place_y), fill=colour, fill_opacity=0.18))
    line = {"points": _points(choice.mean_curve, place_x, place_y), "stroke_dasharray": dash}
    return [*drawn, tag("polyline", fill="none", stroke=colour, stroke_width=2, **line)]


def _end(choice: Choice, name: str, colour: str, place_x: Place, place_y: Place, label_y: float) -> list[Markup]:
    """Draw a line from a choice's end to its name, and the name."""
    x, y = place_x(choice.tokens), place_y(choice.final.mean)
    leader = f"{x + 4:.1f},{y:.1f} {PLOT_RIGHT + 14},{label_y:.1f} {PLOT_RIGHT + 22},{label_y:.1f}"
    return [
        tag("polyline", points=leader, fill="none", stroke=colour, stroke_opacity=0.5),
        tag("text", name, x=PLOT_RIGHT + 26, y=f"{label_y + 4:.1f}", fill=colour),
    ]


def _points(curve: Curve, place_x: Place, place_y: Place) -> str:
    return " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in curve)


def apart(heights: Sequence[float], *, low: float, high: float) -> list[float]:
    """Return heights on the page, the lowest first as given, moved until each has a line's height to itself."""
    moved: list[float] = []
    for height in heights:  # from the bottom of the page upwards: the best choice ends lowest
        below = moved[-1] - LINE_HEIGHT if moved else high
        moved.append(min(height, below))
    for index in reversed(range(len(moved))):
        above = moved[index + 1] + LINE_HEIGHT if index + 1 < len(moved) else low
        moved[index] = max(moved[index], above)
    return moved
