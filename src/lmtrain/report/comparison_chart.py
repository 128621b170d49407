"""The curves of all choices in one SVG file of its own, each named where it ends, with the spread of its seeds."""

from collections.abc import Callable, Sequence
from typing import Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.charts import scale, ticks
from lmtrain.report.choices import Choice
from lmtrain.report.compared_run import Curve
from lmtrain.report.comparison import Comparison
from lmtrain.report.markup import Markup, tag

Place = Callable[[float], float]
Ink = tuple[str, str]
PLOT_RIGHT: Final = 680  # where the curves end and their names begin
CHARACTER: Final = 7  # of a name
LINE_HEIGHT: Final = 16
LEFT, TOP, BOTTOM = 60, 40, 48  # margins
LEAST_HEIGHT: Final = 480
OPENING: Final = 0.1  # of the tokens, in which every curve falls steeply from the same height
COLOURS: Final = (
    "#2a78d6", "#eb6834", "#008300", "#e34948", "#4a3aa7", "#1baf7a", "#c98500", "#d3459b", "#6b6a66", "#0093a8",
    "#7a5230", "#6d9a00", "#9a6be0", "#b00058",
)  # fmt: skip
DASHES: Final = ("none", "7 3", "2 3")
INK, DIM, RULE, PAGE = "#0b0b0b", "#52514e", "#e1e0d9", "#fcfcfb"


def comparison_chart(comparison: Comparison) -> Markup:
    """Draw the mean curve of every choice over the tokens, its height cut where the curves only begin to fall."""
    choices = comparison.choices
    height = max(LEAST_HEIGHT, TOP + BOTTOM + LINE_HEIGHT * len(choices))
    width = PLOT_RIGHT + 34 + CHARACTER * max(len(_name(choice)) for choice in choices)
    most = max(choice.tokens for choice in choices)
    late = [value for c in choices for tokens, value in c.mean_curve if tokens >= OPENING * most]
    ends = [run.final for choice in choices for run in choice.runs]
    up = ticks(min(ends), max(late, default=max(ends)), num=6)
    place_x = scale((0.0, most), LEFT, PLOT_RIGHT)
    place_y = scale((up[0], up[-1]), height - BOTTOM, TOP)
    clip = {"x": LEFT, "y": TOP, "width": PLOT_RIGHT - LEFT + 4, "height": height - BOTTOM - TOP}
    title = f"{comparison.metric} over tokens, {len(choices)} choices, lower is better"
    drawn = [
        tag("rect", x=0, y=0, width=width, height=height, fill=PAGE),
        tag("clipPath", tag("rect", **clip), id="inside"),
        *_grid(up, (0.0, most), place_x, place_y, height),
        tag("text", title, x=LEFT, y=22, fill=INK, font_weight="bold"),
        tag("text", "tokens trained on", x=(LEFT + PLOT_RIGHT) / 2, y=height - 10, fill=DIM, text_anchor="middle"),
    ]
    heights = _apart([place_y(choice.final.mean) for choice in choices], low=TOP, high=height - BOTTOM)
    for index, (choice, label_y) in enumerate(zip(choices, heights, strict=True)):
        drawn += _curve(choice, _ink(index), place_x, place_y, label_y)
    style = {"font_family": "system-ui, sans-serif", "font_size": 12}
    return tag("svg", *drawn, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", role="img",
               aria_label=title, **style)  # fmt: skip


def _grid(
    up: Sequence[float], across: tuple[float, float], place_x: Place, place_y: Place, height: int
) -> list[Markup]:
    drawn: list[Markup] = []
    for value in up:
        y = f"{place_y(value):.1f}"
        drawn.append(tag("line", x1=LEFT, x2=PLOT_RIGHT, y1=y, y2=y, stroke=RULE))
        drawn.append(
            tag("text", f"{value:.4g}", x=LEFT - 8, y=f"{place_y(value) + 4:.1f}", fill=DIM, text_anchor="end")
        )
    for value in ticks(*across):
        if value <= across[1]:
            place = {"x": f"{place_x(value):.1f}", "y": height - BOTTOM + 18}
            drawn.append(tag("text", format_quantity(value), fill=DIM, text_anchor="middle", **place))
    return drawn


def _ink(index: int) -> Ink:
    """Return a colour and a dash that no other curve has, until both have gone round."""
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def _curve(choice: Choice, ink: Ink, place_x: Place, place_y: Place, label_y: float) -> list[Markup]:
    """Draw a choice: the band between its seeds, its mean, a line from its end to its name, and the name."""
    inside = {"clip_path": "url(#inside)"}
    colour, dash = ink
    drawn: list[Markup] = []
    steps = [tokens for tokens, _ in choice.mean_curve]
    curves = [dict(run.curve) for run in choice.runs]
    if len(curves) > 1:
        upper = [(x, max(curve[x] for curve in curves)) for x in steps]
        lower = [(x, min(curve[x] for curve in curves)) for x in reversed(steps)]
        band = _points([*upper, *lower], place_x, place_y)
        drawn.append(tag("polygon", points=band, fill=colour, fill_opacity=0.18, **inside))
    line = _points(choice.mean_curve, place_x, place_y)
    drawn.append(
        tag("polyline", points=line, fill="none", stroke=colour, stroke_width=2, stroke_dasharray=dash, **inside)
    )
    x, y = place_x(choice.tokens), place_y(choice.final.mean)
    leader = f"{x + 4:.1f},{y:.1f} {PLOT_RIGHT + 14},{label_y:.1f} {PLOT_RIGHT + 22},{label_y:.1f}"
    drawn.append(tag("polyline", points=leader, fill="none", stroke=colour, stroke_opacity=0.5))
    drawn.append(tag("text", _name(choice), x=PLOT_RIGHT + 26, y=f"{label_y + 4:.1f}", fill=colour))
    return drawn


def _name(choice: Choice) -> str:
    return f"{choice.final.mean:.3f}  {choice.label}"


def _points(curve: Curve, place_x: Place, place_y: Place) -> str:
    return " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in curve)


def _apart(heights: Sequence[float], *, low: float, high: float) -> list[float]:
    """Return heights on the page, the lowest first as given, moved until each has a line's height to itself."""
    moved: list[float] = []
    for height in heights:  # from the bottom of the page upwards: the best choice ends lowest
        below = moved[-1] - LINE_HEIGHT if moved else high
        moved.append(min(height, below))
    for index in reversed(range(len(moved))):
        above = moved[index + 1] + LINE_HEIGHT if index + 1 < len(moved) else low
        moved[index] = max(moved[index], above)
    return moved
