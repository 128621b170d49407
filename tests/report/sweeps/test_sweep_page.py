import json

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.report.sweeps.sweep_page import sweep_page, write_sweep_report
from tests.report.compared_folder import write
from tests.report.test_markup import Reader


@pytest.fixture
def trials(tmp_path):
    """Two choices with two seeds each, one more trial that goes on, and a run beside the sweep."""
    for lr, seed, last in ((0.1, 1, 2.0), (0.1, 2, 2.2), (0.2, 1, 2.95), (0.2, 2, 3.25)):
        write(tmp_path / f"{lr}-{seed}", lr=lr, seed=seed, values=(8.0, last + 1, last), sweep="sweep-1")
    write(tmp_path / "going", lr=0.3, status="RUNNING", sweep="sweep-1")
    write(tmp_path / "beside")
    (tmp_path / "0.1-1/report.html").write_text("a page")
    return tmp_path


def test_the_page_sets_choices_side_by_side_and_leads_to_every_trial(trials):
    page = Reader(sweep_page(trials / "sweep-1"))
    for shown in (
        "5 trials: 4 finished, 1 ",
        "2.1000bits per byte of the best: optimizer.lr=0.1",
        "+1.0000 ± 0.6353",
        "optimizer.lr=0.1 is 1.0000 better than optimizer.lr=0.2, 14.1 deviations, 2 seeds: more than noise.",
        "To reach 3.1000, by the mean curve",
        "Left outtrialwhygoing",
        "The words of all of them",
        "data=x",
    ):
        assert shown in page.text
    assert "beside" not in page.text.split()
    assert [each["href"] for name, each in page.tags if name == "a"] == ["0.1-1/report.html"]
    assert len([name for name, _ in page.tags if name == "polyline"]) == 2
    assert len([name for name, _ in page.tags if name == "polygon"]) == 2


def test_scores_that_differ_late_are_written_apart_and_alike_everywhere(trials):
    write(trials / "near", lr=0.5, values=(8.0, 3.0, 2.10004), sweep="sweep-1")
    text = Reader(sweep_page(trials / "sweep-1")).text
    assert "2.10000bits per byte of the best: optimizer.lr=0.1" in text
    assert text.count("2.10004") == 2, "among the choices and among the runs"


def test_scores_of_other_parts_of_a_text_have_no_best_and_no_target(trials):
    write(trials / "part", lr=0.4, values=(8.0, 1.0, 1.0), held_out={"num_bytes": 200}, sweep="sweep-1")
    text = Reader(sweep_page(trials / "sweep-1")).text
    assert "optimizer.lr=0.411.0000200200" in text
    for hidden in ("the best", "better than", "To reach"):
        assert hidden not in text


def test_a_swatch_has_the_colour_of_its_curve(trials):
    tags = Reader(sweep_page(trials / "sweep-1")).tags
    swatches = [each["style"].removeprefix("color:") for _, each in tags if each.get("class") == "swatch"]
    strokes = [each["stroke"] for name, each in tags if name == "polyline"]
    assert swatches == strokes[::-1], "the best is drawn last, over the others"


def test_a_sweep_of_which_no_run_has_finished_has_a_page(trials):
    for path in trials.glob("*/status.json"):
        path.write_text(json.dumps({"status": "FAILED", "exit_code": 3}))
    text = Reader(sweep_page(trials / "sweep-1")).text
    assert "No run has finished" in text
    assert "5 trials: 5 failed" in text


def test_the_page_lies_beside_the_runs_and_no_sweep_has_none(trials):
    assert write_sweep_report(trials / "sweep-1") == trials / "sweep-1.html"
    with pytest.raises(ConfigurationError, match="holds no run"):
        write_sweep_report(trials / "sweep-2")
