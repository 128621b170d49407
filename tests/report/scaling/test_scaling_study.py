from pathlib import Path

from lmtrain.report.scaling.law_fit import LawPoint
from lmtrain.report.scaling.scaling_study import by_budget, read_law_point


def test_runs_of_about_one_compute_are_one_budget() -> None:
    points = [LawPoint(num_parameters=size, tokens=flops / (6 * size), loss=2.0)
              for flops in (1e9, 1.1e9, 3e9) for size in (1e3, 2e3)]  # fmt: skip
    assert [len(group) for group in by_budget(points).values()] == [4, 2]


def test_an_unfinished_run_is_no_point(tmp_path: Path) -> None:
    assert read_law_point(tmp_path) == "not finished"
