from lmtrain.accounting.scaling_laws.compute_optimal import REPLICATION
from lmtrain.report.law_fit import LawFit, LawPoint
from lmtrain.report.scaling_chart import scaling_chart
from lmtrain.report.scaling_study import ScalingStudy


def test_each_run_is_a_dot_and_each_budget_a_curve() -> None:
    points = [LawPoint(num_parameters=size, tokens=1e9, loss=3.0 + 1e6 / size) for size in (1e6, 2e6, 4e6)]
    law = LawFit(surface=REPLICATION, draws=(REPLICATION,), residual=0.0, most_flops=1e18)
    study = ScalingStudy(name="s", budgets={1e16: points, 2e16: points}, law=law, isoflop=None, left_out={})
    drawn = scaling_chart(study)
    assert drawn.count("<circle") == 6
    assert drawn.count("<polyline") == 2
    assert "1e+16 FLOPs" in drawn
