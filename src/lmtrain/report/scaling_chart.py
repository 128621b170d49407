"""The chart of a scaling study: the loss over the size, a curve per budget, its minimum, and a run kept out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lmtrain.accounting.quantities import format_flops, format_quantity
from lmtrain.report.charts import Place, scale, ticks
from lmtrain.report.comparison_page import DIM, INK, PAGE, RULE, apart, ink_of, svg_file
from lmtrain.report.markup import Markup, tag
from lmtrain.report.scaling_law import LawPoint
from lmtrain.report.scaling_study import HeldOutRun, ScalingStudy

WIDTH, HEIGHT = 860, 540
LEFT, RIGHT, TOP, BOTTOM = 64, 716, 62, 490
ROOM: Final = 0.5  # for curves above and below all runs, of the runs' own height
TITLE: Final = "Loss over size, one curve a budget of FLOPs"
KEY: Final = "● a run · ━ the law at its budget · ◇ best size, by a parabola through the runs"
KEPT_OUT_KEY: Final = " · ○ kept out of the fit, with its 95% band"


@dataclass(frozen=True, kw_only=True)
class DrawnBudget:
    """A budget: its runs, the law's curve over their sizes, and its ink."""

    flops: float
    runs: Sequence[LawPoint]
    curve: Sequence[tuple[float, float]]
    colour: str
    dash: str = "none"


def scaling_chart(study: ScalingStudy, held_out: HeldOutRun | None = None) -> Markup:
    """Draw all runs with the law's curve of each budget, as one SVG file."""
    budgets = _budgets(study, held_out)
    sizes = [size for budget in budgets for size, _ in budget.curve]
    across = scale((math.log(min(sizes) / 1.1), math.log(max(sizes) * 1.1)), LEFT, RIGHT)
    labels = ticks(*_heights(budgets, held_out))
    y = scale((labels[0], labels[-1]), BOTTOM, TOP)

    def x(size: float) -> float:
        return across(math.log(size))

    clip = tag("rect", x=LEFT, y=TOP, width=RIGHT - LEFT, height=BOTTOM - TOP)
    drawn = [
        tag("rect", x=0, y=0, width=WIDTH, height=HEIGHT, fill=PAGE),
        tag("defs", tag("clipPath", clip, id="plot")),
        tag("text", TITLE, x=LEFT, y=20, fill=INK, font_weight="bold"),
        tag("text", KEY + (KEPT_OUT_KEY if held_out else ""), x=LEFT, y=38, fill=DIM),
        tag("text", "validation loss, nats per token", x=LEFT, y=TOP - 6, fill=DIM),
        *_grid(labels, x, y, (min(sizes), max(sizes))),
    ]
    for budget in budgets:
        curve = " ".join(f"{x(size):.1f},{y(loss):.1f}" for size, loss in budget.curve)
        ink = {"stroke": budget.colour, "stroke_width": 2, "stroke_dasharray": budget.dash}
        drawn.append(tag("polyline", points=curve, fill="none", clip_path="url(#plot)", **ink))
        drawn += [_at("circle", x(run.num_parameters), y(run.loss), r=4, fill=budget.colour) for run in budget.runs]
    drawn += _minima(study, x, y)
    ends = sorted(budgets, key=lambda budget: budget.curve[-1][1])
    heights = apart([min(max(y(budget.curve[-1][1]), TOP), BOTTOM) for budget in ends], low=TOP, high=BOTTOM)
    for budget, height in zip(ends, heights, strict=True):
        name = f"{format_flops(budget.flops)} FLOPs"
        drawn.append(tag("text", name, x=RIGHT + 8, y=f"{height + 4:.1f}", fill=budget.colour))
    drawn += _kept_out(held_out, x, y) if held_out else []
    return svg_file(drawn, width=WIDTH, height=HEIGHT, label=TITLE)


def _budgets(study: ScalingStudy, held_out: HeldOutRun | None) -> list[DrawnBudget]:
    """Return the study's budgets in order, and the law's curve at that of the run kept out."""
    found = [
        DrawnBudget(flops=flops, runs=runs, curve=_curve(study, flops, runs), colour=ink_of(index)[0])
        for index, (flops, runs) in enumerate(sorted(study.budgets.items()))
    ]
    if held_out:
        flops, every = held_out.point.flops, [*study.points, held_out.point]
        found.append(DrawnBudget(flops=flops, runs=[], curve=_curve(study, flops, every), colour=DIM, dash="3 4"))
    return found


def _curve(study: ScalingStudy, flops: float, runs: Sequence[LawPoint]) -> list[tuple[float, float]]:
    ends = [each.num_parameters for each in runs]
    sizes = [float(size) for size in np.geomspace(min(ends), max(ends), 60)]
    return [(size, study.law.surface.loss(size, flops / (6 * size))) for size in sizes]


def _heights(budgets: Sequence[DrawnBudget], held_out: HeldOutRun | None) -> tuple[float, float]:
    """Return the lowest and highest loss drawn: every run, and the curves as far as they stay near the runs."""
    runs = [run.loss for budget in budgets for run in budget.runs]
    runs += [held_out.point.loss, *held_out.band] if held_out else []
    curves = [loss for budget in budgets for _, loss in budget.curve]
    room = ROOM * ((max(runs) - min(runs)) or 1.0)
    low = min(*runs, max(min(curves), min(runs) - room))
    return low, max(*runs, min(max(curves), max(runs) + room))


def _grid(labels: Sequence[float], x: Place, y: Place, sizes: tuple[float, float]) -> list[Markup]:
    drawn: list[Markup] = []
    for value in labels:
        at = f"{y(value):.1f}"
        drawn.append(tag("line", x1=LEFT, x2=RIGHT, y1=at, y2=at, stroke=RULE))
        drawn.append(tag("text", f"{value:.4g}", x=LEFT - 8, y=f"{y(value) + 4:.1f}", fill=DIM, text_anchor="end"))
    low, high = sizes
    factors = (1, 2, 5) if high / low < 1e4 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for size in (factor * 10.0**power for power in powers for factor in factors):
        if low <= size <= high:
            at = f"{x(size):.1f}"
            drawn.append(tag("line", x1=at, x2=at, y1=BOTTOM, y2=BOTTOM + 5, stroke=DIM))
            drawn.append(tag("text", format_quantity(size), x=at, y=BOTTOM + 20, fill=DIM, text_anchor="middle"))
    name = "parameters in matrix products (logarithmic)"
    return [*drawn, tag("text", name, x=(LEFT + RIGHT) / 2, y=BOTTOM + 40, fill=DIM, text_anchor="middle")]


def _at(shape: str, x: float, y: float, **ink: str | float) -> Markup:
    return tag(shape, cx=f"{x:.1f}", cy=f"{y:.1f}", **ink)


def _minima(study: ScalingStudy, x: Place, y: Place) -> list[Markup]:
    """Draw the best size of each budget that has one."""
    inks = {flops: ink_of(index)[0] for index, flops in enumerate(sorted(study.budgets))}
    drawn: list[Markup] = []
    for each in study.isoflop.minima if study.isoflop else ():
        at, height = x(each.num_parameters), y(each.loss)
        around = ((-8, 0), (0, -8), (8, 0), (0, 8))
        corners = " ".join(f"{at + right:.1f},{height + down:.1f}" for right, down in around)
        drawn.append(tag("polygon", points=corners, fill="none", stroke=inks[each.flops], stroke_width=2))
    return drawn


def _kept_out(held_out: HeldOutRun, x: Place, y: Place) -> list[Markup]:
    at, height = x(held_out.point.num_parameters), y(held_out.point.loss)
    low, high = (y(value) for value in held_out.band)
    name = f"{held_out.name}, kept out: {held_out.point.loss:.3f}, predicted {held_out.predicted:.3f}"
    is_right = at > (LEFT + RIGHT) / 2
    place = {"x": f"{at - 12 if is_right else at + 12:.1f}", "text_anchor": "end" if is_right else "start"}
    halo = {"stroke": PAGE, "stroke_width": 4, "paint_order": "stroke"}  # the law's curves pass behind it
    band = {"x1": f"{at:.1f}", "x2": f"{at:.1f}", "y1": f"{low:.1f}", "y2": f"{high:.1f}"}
    return [
        tag("line", stroke=INK, stroke_width=5, stroke_opacity=0.3, **band),
        _at("circle", at, height, r=6, fill="none", stroke=INK, stroke_width=2),
        tag("text", name, y=f"{max(height + 6, low) + 16:.1f}", fill=INK, **place, **halo),
    ]
