"""A sweep's runs as points of a scaling law: the fit, and a prediction for a larger budget.

N counts the parameters in matrix products, with experts those that each token uses: an embedding's lookup costs no
FLOPs, so that C = 6 N D.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import VALIDATION_LOSS
from lmtrain.errors import DataError
from lmtrain.report.runs.find import find_runs, names_apart
from lmtrain.report.scaling_law import SAME_FLOPS, IsoflopFit, LawFit, LawPoint, fit_law, isoflop_fit, optimum
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_log import logged_points
from lmtrain.tracking.status import settled_status

BEYOND: Final = 10.0  # times the largest run's compute: the band covers no more


@dataclass(frozen=True, kw_only=True)
class ScalingPrediction:
    """The best size for an amount of compute and its loss, each with its 95% band; `times_beyond` the largest run."""

    flops: float
    times_beyond: float
    num_parameters: float
    tokens: float
    loss: float
    loss_band: tuple[float, float]
    num_parameters_band: tuple[float, float]
    sizes: tuple[float, float]

    @property
    def warning(self) -> str | None:
        """Warn if the prediction is too far from the runs for its band, or its size from their models."""
        low, high = self.sizes
        if not low / BEYOND <= self.num_parameters <= high * max(BEYOND, self.times_beyond):
            return (
                f"The law's best size is far from all models of the sweep, {low:.3g} to {high:.3g} parameters; sweep "
                "sizes on both sides of a best one."
            )
        if self.times_beyond <= BEYOND * (1 + 1e-9):
            return None
        return (
            f"{self.flops:.3g} FLOPs are {self.times_beyond:.3g} times the largest run's, too far beyond it for the "
            "band; train a larger run first."
        )


@dataclass(frozen=True, kw_only=True)
class ScalingStudy:
    """The points of a sweep's finished runs by budget, both fits."""

    name: str
    budgets: dict[float, list[LawPoint]]
    law: LawFit
    isoflop: IsoflopFit
    left_out: dict[str, str]

    @property
    def points(self) -> list[LawPoint]:
        """Return all points."""
        return [point for points in self.budgets.values() for point in points]

    def predict(self, flops: float) -> ScalingPrediction:
        """Predict the best size and its loss for an amount of compute."""
        size, tokens = optimum(self.law.surface, flops)
        return ScalingPrediction(
            flops=flops,
            times_beyond=flops / self.law.most_flops,
            num_parameters=size,
            tokens=tokens,
            loss=self.law.surface.loss(size, tokens),
            loss_band=self.law.band(lambda each: each.loss(*optimum(each, flops))),
            num_parameters_band=self.law.band(lambda each: optimum(each, flops)[0]),
            sizes=(min(p.num_parameters for p in self.points), max(p.num_parameters for p in self.points)),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fit under stable keys."""
        surface = self.law.surface
        bands = {name: self.law.band(lambda each, name=name: getattr(each, name)) for name in asdict(surface)}
        return {
            "sweep": self.name,
            "num_runs": len(self.points),
            "left_out": self.left_out,
            "fit": {
                **asdict(surface),
                "bands": bands,
                "residual": self.law.residual,
                "most_flops": self.law.most_flops,
                "isoflop": {
                    "minima": [{**asdict(each), "tokens": each.tokens} for each in self.isoflop.minima],
                    "left_out": dict(self.isoflop.left_out),
                },
            },
        }


def study_of(path: Path) -> ScalingStudy:
    """Fit the runs of a sweep."""
    folders = find_runs([path])
    points, reasons = _read(folders)
    names = names_apart(folders)
    left_out = {names[folder]: reason for folder, reason in reasons.items()}
    budgets = by_budget(points)
    law, minima = fit_law(points), isoflop_fit(budgets)
    return ScalingStudy(name=path.name, budgets=budgets, law=law, isoflop=minima, left_out=left_out)


def read_law_point(folder: Path) -> LawPoint | str:
    """Read a run as a point, or return the reason against it."""
    status = settled_status(folder)
    if status is None or status.status != "FINISHED":
        return "not finished"
    parameters: Any = read_json(folder / "plan.json").get("parameters", {})
    found = [point for point in logged_points(folder) if VALIDATION_LOSS in point.metrics]
    if not found or not parameters or found[-1].tokens == 0:
        return f"no {VALIDATION_LOSS} or no plan.json"
    loss = found[-1].metrics[VALIDATION_LOSS]
    if not (math.isfinite(loss) and loss > 0):
        return f"its {VALIDATION_LOSS} is {loss}"
    size = min(float(parameters["matmul"]), float(parameters["active"]))
    return LawPoint(num_parameters=size, tokens=float(found[-1].tokens), loss=loss)


def by_budget(points: Sequence[LawPoint]) -> dict[float, list[LawPoint]]:
    """Group points of about one amount of compute, under their mean."""
    groups: list[list[LawPoint]] = []
    for point in sorted(points, key=lambda each: each.flops):
        if groups and point.flops <= groups[-1][0].flops * SAME_FLOPS:
            groups[-1].append(point)
        else:
            groups.append([point])
    return {sum(each.flops for each in group) / len(group): group for group in groups}


def _read(folders: Sequence[Path]) -> tuple[list[LawPoint], dict[Path, str]]:
    found = {folder: read_law_point(folder) for folder in folders}
    points = {folder: point for folder, point in found.items() if isinstance(point, LawPoint)}
    if len({read_json(folder / "dataset.json").get("tokenizer_fingerprint") for folder in points}) > 1:
        raise DataError("The runs have several tokenizers: losses a token of one are not those of another.")
    return [*points.values()], {folder: reason for folder, reason in found.items() if isinstance(reason, str)}
