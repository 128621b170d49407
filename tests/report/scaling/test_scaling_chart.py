import re

from lmtrain.accounting.scaling_laws.compute_optimal import REPLICATION
from lmtrain.report.scaling.law_fit import LawFit, LawPoint
from lmtrain.report.scaling.scaling_chart import BOTTOM, LEFT, RIGHT, TOP, scaling_chart
from lmtrain.report.scaling.scaling_study import HeldOutRun, ScalingStudy


def study(*, above: float) -> ScalingStudy:
    budgets = {flops: [run(size, flops, above=above) for size in (1e6, 2e6, 4e6)] for flops in (1e16, 2e16)}
    law = LawFit(surface=REPLICATION, draws=(REPLICATION,), residual=0.0, most_flops=1e18)
    return ScalingStudy(name="s", budgets=budgets, law=law, isoflop=None, left_out={})


def run(size: float, flops: float, *, above: float) -> LawPoint:
    tokens = flops / (6 * size)
    return LawPoint(num_parameters=size, tokens=tokens, loss=REPLICATION.loss(size, tokens) + above)


def curves(drawn: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<polyline points="([^"]*)"[^>]*clip-path="url\(#plot\)"', drawn)
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in lines]  # pyright: ignore[reportReturnType]


def test_each_run_is_a_dot_and_each_budget_a_curve_within_the_picture() -> None:
    drawn = scaling_chart(study(above=0.1))
    assert drawn.count("<circle") == 6
    assert len(curves(drawn)) == 2
    assert "1e16 FLOPs" in drawn
    for x, y in [place for curve in curves(drawn) for place in curve]:
        assert LEFT <= x <= RIGHT
        assert TOP <= y <= BOTTOM


def test_a_law_far_from_its_runs_leaves_them_their_room() -> None:
    drawn = scaling_chart(study(above=50.0))
    heights = [float(y) for y in re.findall(r'<circle [^>]*cy="([\d.]+)"', drawn)]
    assert max(heights) - min(heights) > (BOTTOM - TOP) / 3


def test_a_run_kept_out_has_its_band_and_the_law_s_curve_of_its_budget() -> None:
    point = LawPoint(num_parameters=4e6, tokens=4e9, loss=5.5)
    held_out = HeldOutRun(name="big", point=point, predicted=5.6, band=(5.3, 5.9))
    drawn = scaling_chart(study(above=0.0), held_out)
    assert len(curves(drawn)) == 3
    assert "9.6e16 FLOPs" in drawn
    assert "big, kept out: 5.500, predicted 5.600" in drawn
