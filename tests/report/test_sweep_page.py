"""The page of a sweep: trials, choices and runs."""

import json
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.report.sweep_page import sweep_page, sweep_sections, write_sweep_report
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial
from tests.report.compared_folder import write
from tests.report.test_pages import Reader


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
        "+1.0000 ± 0.6353",
        "optimizer.lr=0.1 is 1.0000 ± 0.6353 better than optimizer.lr=0.2: more than noise.",
        "To reach 3.1000, by the mean curve",
        "Left outtrialwhygoing",
    ):
        assert shown in page.text
    assert "beside" not in page.text.split()
    assert [each["href"] for name, each in page.tags if name == "a"] == ["0.1-1/report.html"]
    assert len([name for name, _ in page.tags if name == "polyline"]) == 2
    assert len([name for name, _ in page.tags if name == "polygon"]) == 2


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


def searched(folder: Path) -> SweepFile:
    """Write a search of twelve trials, the last one diverged."""
    sweep = SweepFile(name="s", kind="search", metric="validation/loss", fingerprint="f", command="c")
    for number in range(12):
        values = {"optimizer.lr": f"{0.01 * (number + 1):.2f}", "schedule": "ab"[number % 2]}
        score = 2.0 + abs(number - 4)
        trial = SweepTrial(number=number, values=values, state="finished", score=score)
        trial.runs = [SweepRun(folder=f"trial-{number:04d}", seed=1, state="finished", score=score, seconds=60)]
        sweep.trials.append(trial)
    sweep.trials[-1].state, sweep.trials[-1].score, sweep.trials[-1].reason = "diverged", None, "loss is NaN"
    sweep.save(folder)
    return sweep


def test_the_best_is_shown(tmp_path: Path) -> None:
    sweep = searched(tmp_path)
    page = Reader(sweep_sections(sweep))
    for shown in (
        "The best: trial 4validation/loss 2.0000, optimizer.lr=0.05 schedule=a.",
        "11diverged-0.12b1min00sloss is NaN",
    ):
        assert shown in page.text, shown


def test_scores_of_different_texts_are_listed_by_number_without_a_best(tmp_path: Path) -> None:
    sweep = searched(tmp_path)
    sweep.unranked = "The held-out texts differ."
    text = Reader(sweep_sections(sweep)).text
    assert text.startswith("No bestThe held-out texts differ.Trialstrial")
    assert text.index("0finished6.0000") < text.index("4finished2.0000")
