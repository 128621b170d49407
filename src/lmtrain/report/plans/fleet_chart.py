"""Tokens per second and device over the number of ranks, a line for each strategy, in one SVG file of its own."""

import math
from collections.abc import Sequence
from typing import Final

from lmtrain.accounting.training_plan.simulated_step import SimulatedFleet
from lmtrain.report.charts import Place, scale, ticks
from lmtrain.report.comparison_page import ink_of
from lmtrain.report.markup import Markup, tag

LEFT, RIGHT, TOP, BOTTOM = 70, 560, 40, 340
WIDTH, HEIGHT = 720, 390
INK, DIM, RULE, PAGE = "#0b0b0b", "#52514e", "#e1e0d9", "#fcfcfb"
OPEN: Final = "none"  # the inside of a point whose fleet does not fit its devices


def fleet_chart(title: str, fleets: Sequence[SimulatedFleet]) -> Markup:
    """Draw every strategy's speed; a point is open where the fleet does not fit its devices."""
    ranks = sorted({fleet.batch.num_ranks for fleet in fleets})
    most = max(fleet.tokens_per_second_per_device for fleet in fleets)
    values = ticks(0.0, most)
    place_x = scale((math.log2(ranks[0]), math.log2(ranks[-1]) + (len(ranks) == 1)), LEFT, RIGHT)
    place_y = scale((0.0, max(most, values[-1])), BOTTOM, TOP)
    words = f"{title}: tokens/s a device over ranks, simulated"
    drawn = [
        tag("rect", x=0, y=0, width=WIDTH, height=HEIGHT, fill=PAGE),
        tag("text", words, x=LEFT, y=22, fill=INK, font_weight="bold"),
    ]
    for value in values:
        y = f"{place_y(value):.1f}"
        drawn.append(tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, stroke=RULE))
        drawn.append(tag("text", f"{value:,.0f}", x=LEFT - 8, y=y, fill=DIM, text_anchor="end"))
    for number in ranks:
        x = f"{place_x(math.log2(number)):.1f}"
        drawn.append(tag("text", f"{number:,}", x=x, y=BOTTOM + 20, fill=DIM, text_anchor="middle"))
    for index, strategy in enumerate(dict.fromkeys(fleet.strategy for fleet in fleets)):
        drawn += _line(strategy, [fleet for fleet in fleets if fleet.strategy == strategy], index, place_x, place_y)
    style = {"font_family": "system-ui, sans-serif", "font_size": 12}
    return tag(
        "svg",
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=words,
        **style,
    )


def _line(name: str, fleets: Sequence[SimulatedFleet], index: int, place_x: Place, place_y: Place) -> list[Markup]:
    colour, dash = ink_of(index)
    points = [
        (place_x(math.log2(fleet.batch.num_ranks)), place_y(fleet.tokens_per_second_per_device), fleet.fits)
        for fleet in sorted(fleets, key=lambda fleet: fleet.batch.num_ranks)
    ]
    line = {"points": " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points), "stroke_dasharray": dash}
    drawn = [tag("polyline", fill="none", stroke=colour, stroke_width=2, **line)]
    for x, y, fits in points:
        inside = OPEN if fits is False else colour
        drawn.append(tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4, stroke=colour, fill=inside))
    x, y, _ = points[-1]
    drawn.append(tag("text", name, x=f"{x + 10:.1f}", y=f"{y + 4 + 13 * (index % 2):.1f}", fill=colour))
    return drawn
