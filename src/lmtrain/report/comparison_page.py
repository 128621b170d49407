"""A comparison as people read it: tables with the noise next to every difference, and the curves of all choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.charts import Place, distinct_labels, plain, scale, ticks
from lmtrain.report.compared_runs import Choice, Curve, is_of_training
from lmtrain.report.comparison import Comparison, Reach
from lmtrain.report.markup import Markup, tag
from lmtrain.report.show import plain_text, show
from lmtrain.report.spread import difference
from lmtrain.tracking.sweep_file import ASSISTANT

REACHES_HEAD: Final = ("choice", "tokens", "of baseline's", "FLOPs", "work in steps")
PLOT_RIGHT: Final = 680  # where the curves end and their names begin
CHARACTER: Final = 7  # pixels of a name
LINE_HEIGHT: Final = 16
LEFT, TOP, BOTTOM = 60, 40, 48  # margins
LEAST_HEIGHT: Final = 480
OPENING: Final = 0.1  # of the tokens, where every curve falls steeply from the same height
OPENING_HEIGHT: Final = 0.2  # of the page
LEAST_TIMES: Final = 2.0  # below it a second scale is not worth it
COLOURS: Final = (
    "#2a78d6", "#eb6834", "#008300", "#e34948", "#4a3aa7", "#1baf7a", "#c98500", "#d3459b", "#6b6a66", "#0093a8",
    "#7a5230", "#6d9a00", "#9a6be0", "#b00058",
)  # fmt: skip
DASHES: Final = ("none", "7 3", "2 3")
INK, DIM, RULE, PAGE = "#0b0b0b", "#52514e", "#e1e0d9", "#fcfcfb"


def print_comparison(comparison: Comparison) -> None:
    """Print the page, in colour on a terminal."""
    show(page(comparison))


def text_of(comparison: Comparison) -> str:
    """Return the page as plain text."""
    return plain_text(page(comparison))


def page(comparison: Comparison) -> RenderableType:
    """Lay out the comparison."""
    parts: list[RenderableType] = [Rule(Text(_title(comparison), style="bold"), style="dim cyan")]
    parts.append(_table(finals_head(comparison), finals_rows(comparison)))
    parts += [Text(f"\n{verdict}", style="bold") for verdict in [verdict_words(comparison)] if verdict]
    parts += [Text(f"\n{note}", style="dim") for note in comparison.notes]
    if comparison.reaches:
        parts += [Text(f"\n{target_words(comparison)}", style="bold"), _table(REACHES_HEAD, reaches_rows(comparison))]
    if comparison.left_out:
        parts.append(Text("\nLeft out", style="bold"))
        parts += [Text(f"  {name}: {reason}", style="red") for name, reason in comparison.left_out.items()]
    return Group(*parts)


def _title(comparison: Comparison) -> str:
    held_out = comparison.held_out
    if is_of_training(comparison.metric):
        return f"{comparison.metric}, {held_out.source}"
    if held_out.is_assistant:
        return f"{comparison.metric}, {ASSISTANT} in {held_out.source}"
    if not comparison.is_one_part:
        return f"{comparison.metric}, parts of the {held_out.split_bytes:,} held-out bytes of {held_out.source}"
    return f"{comparison.metric}, {held_out.num_bytes:,} held-out bytes of {held_out.source}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(head):
        table.add_column(column, justify="right" if index else "left", overflow="fold", no_wrap=index > 0)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def finals_head(comparison: Comparison) -> tuple[str, ...]:
    """Name the columns of `finals_rows`."""
    compared = "difference ± 95%" if comparison.is_one_part else "held-out bytes"
    return ("choice", "seeds", "mean", "deviation", compared, "tokens")


def finals_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row per choice: its last values, and its difference from the baseline with the noise."""
    decimals = comparison.decimals
    return [
        (
            choice.label,
            str(choice.final.num),
            f"{choice.final.mean:.{decimals}f}",
            "" if (deviation := choice.final.standard_deviation) is None else f"{deviation:.{decimals}f}",
            difference_words(comparison, choice),
            format_quantity(choice.tokens),
        )
        for choice in comparison.choices
    ]


def difference_words(comparison: Comparison, choice: Choice) -> str:
    """Write a choice's difference from the baseline with its noise; the bytes of its score if scores do not compare."""
    if not comparison.is_one_part:
        return f"{choice.held_out_bytes:,}"
    found, decimals = comparison.differences.get(choice.label), comparison.decimals
    if found is None:
        return "baseline"
    if found.plus_minus is None:
        return f"{found.mean:+.{decimals}f}, noise unknown"
    return f"{found.mean:+.{decimals}f} ± {found.plus_minus:.{decimals}f}{' (noise)' if found.is_noise else ''}"


def verdict_words(comparison: Comparison) -> str | None:
    """Write the best choice's lead over the next, or over a named baseline, and whether it is noise.

    None: there is one choice, or scores do not compare.
    """
    best, *others = comparison.choices
    if not others or not comparison.is_one_part:
        return None
    other = others[0] if comparison.baseline is best else comparison.baseline
    found = difference(other.by_seed, best.by_seed)  # over shared seeds, which may rank the two the other way round
    if not found.mean:
        return f"{best.label} and {other.label} have the same score"
    better = f"{abs(found.mean):.{comparison.decimals}f} {'better' if found.mean >= 0 else 'worse'} than {other.label}"
    if found.plus_minus is None:
        return f"{best.label} is {better}: noise unknown"
    deviations = f", {abs(found.mean) / found.deviation:.1f} deviations" if found.deviation else ""
    seeds = format_count(found.num_seeds, "seed")
    return f"{best.label} is {better}{deviations}, {seeds}: {'within' if found.is_noise else 'more than'} noise"


def target_words(comparison: Comparison) -> str:
    """Name the value to reach."""
    return f"To reach {comparison.target:.{comparison.decimals}f}, by the mean curve"


def reaches_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row per choice: tokens until the target, their share of the baseline's, FLOPs and time."""
    return [(choice.label, *_reach_words(comparison.reaches[choice.label])) for choice in comparison.choices]


def _reach_words(reach: Reach) -> tuple[str, str, str, str]:
    if reach.between is None:
        return "never", "", "", ""
    if reach.tokens is None or reach.flops is None:
        before, after = (format_quantity(round(tokens)) for tokens in reach.between)
        return f"between {before} and {after}", "", "", ""
    return (
        format_quantity(round(reach.tokens)),
        "" if reach.of_baseline is None else f"{reach.of_baseline:.0%}",
        f"{reach.flops:.3g}",
        "" if reach.seconds is None else format_quantity(reach.seconds, "seconds"),
    )


def ink_of(index: int) -> tuple[str, str]:
    """Return the colour and the dash of a curve; they repeat after all pairs are used."""
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def curves_title(comparison: Comparison) -> str:
    """Name the plot of all curves."""
    reading = "lower is better" if comparison.is_one_part else "of different parts of the text: they do not compare"
    return f"{comparison.metric} over tokens, {len(comparison.choices)} choices, {reading}"


@dataclass(frozen=True, kw_only=True)
class ComparisonAxes:
    """The tokens drawn, the values with a label, and those at the bottom, the break and the top of the page.

    Without a break the values from the break up are none: `cut` is the top.
    """

    most_tokens: float
    labels: Sequence[float]
    bottom: float
    cut: float
    top: float

    @property
    def words(self) -> str:
        """Say how much smaller the scale above the break is; empty without a break."""
        return f"above {self.cut:.4g}: drawn {self.times_smaller:.2g} times smaller" if self.cut < self.top else ""

    @property
    def times_smaller(self) -> float:
        """Return the scale below the break divided by that above it."""
        return (self.top - self.cut) / OPENING_HEIGHT * (1 - OPENING_HEIGHT) / (self.cut - self.bottom)

    def place(self, *, bottom: float, top: float) -> Place:
        """Return a function from values to positions on the page."""
        if self.cut >= self.top:
            return scale((self.bottom, self.top), bottom, top)
        middle = top + OPENING_HEIGHT * (bottom - top)
        lower, upper = scale((self.bottom, self.cut), bottom, middle), scale((self.cut, self.top), middle, top)
        return lambda value: lower(value) if value <= self.cut else upper(value)


def comparison_axes(choices: Sequence[Choice]) -> ComparisonAxes:
    """Return axes that show whole curves, and large differences at their ends.

    All curves fall steeply at first: if that part would take most of the page, it gets a fifth.
    """
    most = max(choice.tokens for choice in choices)
    points = [point for choice in choices for run in choice.runs for point in run.curve]
    highest, lowest = max(value for _, value in points), min(value for _, value in points)
    late = max(value for tokens, value in points if tokens >= OPENING * most)
    lower = ticks(lowest, late, num=6)
    if len(lower) > 1 and highest > lower[-1]:
        axes = ComparisonAxes(most_tokens=most, labels=[*lower, highest], bottom=lower[0], cut=lower[-1], top=highest)
        if axes.times_smaller >= LEAST_TIMES:
            return axes
    whole = ticks(lowest, highest, num=6)
    return ComparisonAxes(most_tokens=most, labels=whole, bottom=whole[0], cut=whole[-1], top=whole[-1])


def comparison_chart(comparison: Comparison) -> Markup:
    """Draw all choices as one SVG file: mean curves over tokens with the bands of their seeds, named at their ends."""
    choices = comparison.choices
    height = max(LEAST_HEIGHT, TOP + BOTTOM + LINE_HEIGHT * len(choices))
    names = [f"{choice.final.mean:.{comparison.decimals}f}  {choice.label}" for choice in choices]
    width = PLOT_RIGHT + 34 + CHARACTER * max(map(len, names))
    axes = comparison_axes(choices)
    x = scale((0.0, axes.most_tokens), LEFT, PLOT_RIGHT)
    y = axes.place(bottom=height - BOTTOM, top=TOP)
    title = curves_title(comparison)
    drawn = [
        tag("rect", x=0, y=0, width=width, height=height, fill=PAGE),
        *_grid(axes, x, y, height),
        tag("text", title, x=LEFT, y=22, fill=INK, font_weight="bold"),
        tag("text", "tokens trained on", x=(LEFT + PLOT_RIGHT) / 2, y=height - 10, fill=DIM, text_anchor="middle"),
    ]
    heights = apart([y(choice.final.mean) for choice in choices], low=TOP, high=height - BOTTOM)
    for index, (choice, name, label_y) in enumerate(zip(choices, names, heights, strict=True)):
        colour, dash = ink_of(index)
        if choice.band:
            drawn.append(tag("polygon", points=_points(choice.band, x, y), fill=colour, fill_opacity=0.18))
        ink = {"fill": "none", "stroke": colour}
        curve = _points(choice.mean_curve, x, y)
        leader = f"{x(choice.tokens) + 4:.1f},{y(choice.final.mean):.1f} {PLOT_RIGHT + 14},{label_y:.1f} "
        leader += f"{PLOT_RIGHT + 22},{label_y:.1f}"
        drawn += [
            tag("polyline", points=curve, stroke_width=2, stroke_dasharray=dash, **ink),
            tag("polyline", points=leader, stroke_opacity=0.5, **ink),
            tag("text", name, x=PLOT_RIGHT + 26, y=f"{label_y + 4:.1f}", fill=colour),
        ]
    return svg_file(drawn, width=width, height=height, label=title)


def svg_file(drawn: Sequence[Markup], *, width: float, height: float, label: str) -> Markup:
    """Return an SVG that is a file by itself."""
    style = {"font_family": "system-ui, sans-serif", "font_size": 12}
    return tag("svg", *drawn, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", role="img",
               aria_label=label, **style)  # fmt: skip


def _grid(axes: ComparisonAxes, x: Place, y: Place, height: int) -> list[Markup]:
    drawn: list[Markup] = []
    for value, label in zip(axes.labels, distinct_labels(axes.labels, plain), strict=True):
        at = f"{y(value):.1f}"
        dash = {"stroke_dasharray": "2 4"} if axes.words and value == axes.cut else {}
        drawn.append(tag("line", x1=LEFT, x2=PLOT_RIGHT, y1=at, y2=at, stroke=RULE, **dash))
        drawn.append(tag("text", label, x=LEFT - 8, y=f"{y(value) + 4:.1f}", fill=DIM, text_anchor="end"))
    if axes.words:
        at = f"{y(axes.cut) - 6:.1f}"
        drawn.append(tag("text", axes.words, x=PLOT_RIGHT, y=at, fill=DIM, text_anchor="end"))
    for value in (value for value in ticks(0.0, axes.most_tokens) if value <= axes.most_tokens):
        place = {"x": f"{x(value):.1f}", "y": height - BOTTOM + 18}
        drawn.append(tag("text", format_quantity(value), fill=DIM, text_anchor="middle", **place))
    return drawn


def _points(curve: Curve, x: Place, y: Place) -> str:
    return " ".join(f"{x(tokens):.1f},{y(value):.1f}" for tokens, value in curve)


def apart(heights: Sequence[float], *, low: float, high: float) -> list[float]:
    """Move heights on the page, given from the bottom up, until each has a line's height to itself."""
    moved: list[float] = []
    for height in heights:
        moved.append(min(height, moved[-1] - LINE_HEIGHT if moved else high))
    for index in reversed(range(len(moved))):
        moved[index] = max(moved[index], moved[index + 1] + LINE_HEIGHT if index + 1 < len(moved) else low)
    return moved
