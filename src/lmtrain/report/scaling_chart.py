"""The picture of a scaling study: the loss over the size, a curve for each budget, its minimum, and a run kept out."""

from collections.abc import Sequence

import numpy as np

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.charts import Place, scale, ticks
from lmtrain.report.comparison_chart import DIM, INK, PAGE, RULE, ink_of
from lmtrain.report.isoflop_minima import IsoflopMinimum
from lmtrain.report.law_fit import LawPoint
from lmtrain.report.markup import Markup, tag
from lmtrain.report.scaling_study import HeldOutRun, ScalingStudy

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 64, 700, 44, 470


def scaling_chart(study: ScalingStudy, held_out: HeldOutRun | None = None) -> Markup:
    """Draw all runs with the law's curve of each budget."""
    shown = [*study.points, *([held_out.point] if held_out else [])]
    sizes = [point.num_parameters for point in shown]
    place_x = _log_scale(min(sizes) / 1.3, max(sizes) * 1.3)
    losses = [point.loss for point in shown]
    labels = ticks(min(losses), max(losses))
    place_y = scale((min(labels[0], *losses), max(labels[-1], *losses)), BOTTOM, TOP)
    title = "Loss over size, one curve a budget of FLOPs"
    parts = [
        tag("rect", x=0, y=0, width=WIDTH, height=HEIGHT, fill=PAGE),
        tag("text", title, x=LEFT, y=24, fill=INK, font_weight="bold"),
        tag("text", "validation loss, nats per token", x=LEFT, y=TOP - 6, fill=DIM),
        *_grid(labels, place_x, place_y, (min(sizes), max(sizes))),
    ]
    for index, (flops, points) in enumerate(sorted(study.budgets.items())):
        parts += _budget(study, flops, points, ink_of(index)[0], place_x, place_y)
    if held_out:
        parts += _kept_out(held_out, place_x, place_y)
    style = {"font_family": "system-ui, sans-serif", "font_size": 12}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
               aria_label=title, **style)  # fmt: skip


def _log_scale(low: float, high: float) -> Place:
    linear = scale((float(np.log(low)), float(np.log(high))), LEFT, RIGHT)
    return lambda value: linear(float(np.log(value)))


def _grid(labels: Sequence[float], place_x: Place, place_y: Place, sizes: tuple[float, float]) -> list[Markup]:
    drawn: list[Markup] = []
    for value in labels:
        y = f"{place_y(value):.1f}"
        drawn.append(tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, stroke=RULE))
        drawn.append(
            tag("text", f"{value:.4g}", x=LEFT - 8, y=f"{place_y(value) + 4:.1f}", fill=DIM, text_anchor="end")
        )
    for size in np.geomspace(*sizes, 5):
        x = f"{place_x(float(size)):.1f}"
        drawn.append(tag("text", format_quantity(round(size, -3)), x=x, y=BOTTOM + 20, fill=DIM, text_anchor="middle"))
    words = "parameters in matrix products (logarithmic)"
    drawn.append(tag("text", words, x=(LEFT + RIGHT) / 2, y=BOTTOM + 40, fill=DIM, text_anchor="middle"))
    return drawn


def _budget(
    study: ScalingStudy, flops: float, points: Sequence[LawPoint], colour: str, place_x: Place, place_y: Place
) -> list[Markup]:
    """Draw a budget's runs, the law's curve through their range, its minimum, and its name."""
    ends = [point.num_parameters for point in points]
    sizes = [float(size) for size in np.geomspace(min(ends), max(ends), 60)]
    surface = study.law.surface
    curve = " ".join(f"{place_x(size):.1f},{place_y(surface.loss(size, flops / (6 * size))):.1f}" for size in sizes)
    drawn = [tag("polyline", points=curve, fill="none", stroke=colour, stroke_width=2)]
    drawn += [
        tag("circle", cx=f"{place_x(each.num_parameters):.1f}", cy=f"{place_y(each.loss):.1f}", r=4, fill=colour)
        for each in points
    ]
    drawn += [_minimum(each, colour, place_x, place_y) for each in _minima(study, flops)]
    last = max(points, key=lambda each: each.num_parameters)
    place = {"x": f"{place_x(last.num_parameters) + 10:.1f}", "y": f"{place_y(last.loss) + 4:.1f}"}
    return [*drawn, tag("text", f"{flops:.3g} FLOPs", fill=colour, **place)]


def _minima(study: ScalingStudy, flops: float) -> list[IsoflopMinimum]:
    return [each for each in study.isoflop.minima if each.flops == flops] if study.isoflop else []


def _minimum(each: IsoflopMinimum, colour: str, place_x: Place, place_y: Place) -> Markup:
    x, y = place_x(each.num_parameters), place_y(each.loss)
    corners = f"{x:.1f},{y - 8:.1f} {x + 8:.1f},{y:.1f} {x:.1f},{y + 8:.1f} {x - 8:.1f},{y:.1f}"
    return tag("polygon", points=corners, fill="none", stroke=colour, stroke_width=2)


def _kept_out(held_out: HeldOutRun, place_x: Place, place_y: Place) -> list[Markup]:
    x = place_x(held_out.point.num_parameters)
    low, high = (place_y(value) for value in held_out.band)
    name = f"{held_out.name}, kept out: {held_out.point.loss:.3f}, predicted {held_out.predicted:.3f}"
    return [
        tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=f"{low:.1f}", y2=f"{high:.1f}", stroke=INK, stroke_width=5,
            stroke_opacity=0.3),
        tag("circle", cx=f"{x:.1f}", cy=f"{place_y(held_out.point.loss):.1f}", r=6, fill="none", stroke=INK,
            stroke_width=2),
        tag("text", name, x=f"{x - 12:.1f}", y=f"{place_y(held_out.point.loss) + 4:.1f}", fill=INK,
            text_anchor="end"),
    ]  # fmt: skip
