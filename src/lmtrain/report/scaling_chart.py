"""The chart of a scaling study: the loss over the size, a curve per budget, its minimum, and a run kept out."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from lmtrain.accounting.quantities import format_flops
from lmtrain.report.charts import DIM, Line, ink_of, svg_file
from lmtrain.report.markup import Markup
from lmtrain.report.scaling_law import LawPoint
from lmtrain.report.scaling_study import HeldOutRun, ScalingStudy

TITLE: Final = "Validation loss over parameters in matrix products: runs, and the law of each budget"
ROOM: Final = 0.5  # for curves above all runs, of the runs' own height


def scaling_chart(study: ScalingStudy, held_out: HeldOutRun | None = None) -> Markup:
    """Draw all runs as points with the law's curve of each budget, as one SVG file."""
    lines: list[Line] = []
    for index, (flops, runs) in enumerate(sorted(study.budgets.items())):
        marks = [(run.num_parameters, run.loss) for run in runs]
        name, curve = f"{format_flops(flops)} FLOPs", _curve(study, flops, runs)
        lines.append(Line(points=curve, marks=marks, name=name, colour=ink_of(index)[0]))
    losses = [run.loss for run in study.points]
    if held_out:
        point, every = held_out.point, [*study.points, held_out.point]
        name = f"{held_out.name}, kept out: {point.loss:.3f}, predicted {held_out.predicted:.3f}"
        curve, marks = _curve(study, point.flops, every), [(point.num_parameters, point.loss)]
        lines.append(Line(points=curve, marks=marks, name=name, colour=DIM, dash="3 4"))
        losses.append(point.loss)
    top = max(losses) + ROOM * ((max(losses) - min(losses)) or 1.0)
    return svg_file(lines, title=TITLE, across="parameters in matrix products (logarithmic)", is_log=True, top=top)


def _curve(study: ScalingStudy, flops: float, runs: Sequence[LawPoint]) -> list[tuple[float, float]]:
    """Return the law's losses at an amount of compute over the sizes of some runs."""
    ends = [each.num_parameters for each in runs]
    sizes = [float(size) for size in np.geomspace(min(ends), max(ends), 60)]
    return [(size, study.law.surface.loss(size, flops / (6 * size))) for size in sizes]
