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
PLOT: Final = "plot"  # the curves' clip
ROOM: Final = 0.5  # for curves above and below all runs, of the runs' own height
TITLE: Final = "Loss over size, one curve a budget of FLOPs"
KEY: Final = "● a run · ━ the law at its budget · ◇ best size, by a parabola through the runs"
KEPT_OUT_KEY: Final = " · ○ kept out of the fit, before its 95% band"


@dataclass(frozen=True, kw_only=True)
class DrawnBudget:
    """One budget in the picture: its runs, the law's curve through their sizes, and its colour."""

    flops: float
    runs: Sequence[LawPoint]
    curve: Sequence[tuple[float, float]]
    colour: str
    dash: str = "none"


def scaling_chart(study: ScalingStudy, held_out: HeldOutRun | None = None) -> Markup:
    """Draw all runs with the law's curve of each budget."""
    budgets = _budgets(study, held_out)
    sizes = [size for budget in budgets for size, _ in budget.curve]
    place_x = _log_scale(min(sizes) / 1.1, max(sizes) * 1.1)
    labels = ticks(*_heights(budgets, held_out))
    place_y = scale((labels[0], labels[-1]), BOTTOM, TOP)
    clip = tag("clipPath", tag("rect", x=LEFT, y=TOP, width=RIGHT - LEFT, height=BOTTOM - TOP), id=PLOT)
    drawn = [
        tag("rect", x=0, y=0, width=WIDTH, height=HEIGHT, fill=PAGE),
        tag("defs", clip),
        tag("text", TITLE, x=LEFT, y=20, fill=INK, font_weight="bold"),
        tag("text", KEY + (KEPT_OUT_KEY if held_out else ""), x=LEFT, y=38, fill=DIM),
        tag("text", "validation loss, nats per token", x=LEFT, y=TOP - 6, fill=DIM),
        *_grid(labels, place_x, place_y, (min(sizes), max(sizes))),
        *(part for budget in budgets for part in _budget(budget, place_x, place_y)),
        *_minima(study, place_x, place_y),
        *_names(budgets, place_y),
        *(_kept_out(held_out, place_x, place_y) if held_out else []),
    ]
    return svg_file(drawn, width=WIDTH, height=HEIGHT, label=TITLE)


def _budgets(study: ScalingStudy, held_out: HeldOutRun | None) -> list[DrawnBudget]:
    """Return the study's budgets in order, and the law's curve alone at that of the run kept out."""
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


def _log_scale(low: float, high: float) -> Place:
    linear = scale((math.log(low), math.log(high)), LEFT, RIGHT)
    return lambda value: linear(math.log(value))


def _sizes(low: float, high: float) -> list[float]:
    """Return round sizes between two: 1, 2 and 5 times powers of ten, or powers alone over a wide range."""
    factors = (1, 2, 5) if high / low < 1e4 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]


def _grid(labels: Sequence[float], place_x: Place, place_y: Place, sizes: tuple[float, float]) -> list[Markup]:
    drawn: list[Markup] = []
    for value in labels:
        y = f"{place_y(value):.1f}"
        drawn.append(tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, stroke=RULE))
        drawn.append(
            tag("text", f"{value:.4g}", x=LEFT - 8, y=f"{place_y(value) + 4:.1f}", fill=DIM, text_anchor="end")
        )
    for size in _sizes(*sizes):
        x = f"{place_x(size):.1f}"
        drawn.append(tag("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 5, stroke=DIM))
        drawn.append(tag("text", format_quantity(size), x=x, y=BOTTOM + 20, fill=DIM, text_anchor="middle"))
    words = "parameters in matrix products (logarithmic)"
    drawn.append(tag("text", words, x=(LEFT + RIGHT) / 2, y=BOTTOM + 40, fill=DIM, text_anchor="middle"))
    return drawn


def _budget(budget: DrawnBudget, place_x: Place, place_y: Place) -> list[Markup]:
    """Draw a budget's runs and the law's curve through their sizes."""
    curve = " ".join(f"{place_x(size):.1f},{place_y(loss):.1f}" for size, loss in budget.curve)
    line = tag("polyline", points=curve, fill="none", stroke=budget.colour, stroke_width=2,
               stroke_dasharray=budget.dash, clip_path=f"url(#{PLOT})")  # fmt: skip
    dots = (
        tag("circle", cx=f"{place_x(run.num_parameters):.1f}", cy=f"{place_y(run.loss):.1f}", r=4, fill=budget.colour)
        for run in budget.runs
    )
    return [line, *dots]


def _names(budgets: Sequence[DrawnBudget], place_y: Place) -> list[Markup]:
    """Name the budgets beside the ends of their curves, each on a line of its own."""
    ends = sorted(budgets, key=lambda budget: budget.curve[-1][1])
    wanted = [min(max(place_y(budget.curve[-1][1]), TOP), BOTTOM) for budget in ends]
    heights = apart(wanted, low=TOP, high=BOTTOM)
    return [
        tag("text", f"{format_flops(budget.flops)} FLOPs", x=RIGHT + 8, y=f"{height + 4:.1f}", fill=budget.colour)
        for budget, height in zip(ends, heights, strict=True)
    ]  # fmt: skip


def _minima(study: ScalingStudy, place_x: Place, place_y: Place) -> list[Markup]:
    """Draw the best size of each budget that has one, in its budget's colour."""
    inks = {flops: ink_of(index)[0] for index, flops in enumerate(sorted(study.budgets))}
    drawn: list[Markup] = []
    for each in study.isoflop.minima if study.isoflop else ():
        x, y = place_x(each.num_parameters), place_y(each.loss)
        corners = f"{x - 8:.1f},{y:.1f} {x:.1f},{y - 8:.1f} {x + 8:.1f},{y:.1f} {x:.1f},{y + 8:.1f}"
        drawn.append(tag("polygon", points=corners, fill="none", stroke=inks[each.flops], stroke_width=2))
    return drawn


def _kept_out(held_out: HeldOutRun, place_x: Place, place_y: Place) -> list[Markup]:
    x, y = place_x(held_out.point.num_parameters), place_y(held_out.point.loss)
    low, high = (place_y(value) for value in held_out.band)
    name = f"{held_out.name}, kept out: {held_out.point.loss:.3f}, predicted {held_out.predicted:.3f}"
    halo = {"stroke": PAGE, "stroke_width": 4, "paint_order": "stroke"}  # the law's curves go on behind it
    is_left = x > (LEFT + RIGHT) / 2
    beside = {"x": f"{x - 12 if is_left else x + 12:.1f}", "text_anchor": "end" if is_left else "start"}
    return [
        tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=f"{low:.1f}", y2=f"{high:.1f}", stroke=INK, stroke_width=5,
            stroke_opacity=0.3),
        tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=6, fill="none", stroke=INK, stroke_width=2),
        tag("text", name, y=f"{max(y + 6, low) + 16:.1f}", fill=INK, **beside, **halo),
    ]  # fmt: skip
