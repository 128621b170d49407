import re
from pathlib import Path

import pytest

from lmtrain.cli.commands.compare import compare
from lmtrain.report.runs.facts import read_run
from lmtrain.report.sweeps.sweep_page import sweep_page
from lmtrain.report.sweeps.sweep_trials import sweep_sections
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial
from tests.report.compared_folder import write
from tests.report.test_markup import Reader


def searched(folder: Path) -> SweepFile:
    """Write a search of twelve trials, the best of them with a run, the last one diverged."""
    sweep = SweepFile(name="s", kind="search", metric="validation/loss", fingerprint="f", command="c")
    for number in range(12):
        values = {"optimizer.lr": f"{0.01 * (number + 1):.2f}", "schedule": "ab"[number % 2]}
        score = 2.0 + abs(number - 4)
        trial = SweepTrial(number=number, values=values, state="finished", score=score)
        trial.runs = [SweepRun(folder=f"trial-{number:04d}", seed=1, state="finished", score=score, seconds=60)]
        sweep.trials.append(trial)
    sweep.trials[-1].state, sweep.trials[-1].score, sweep.trials[-1].reason = "diverged", None, "loss is NaN"
    words = ["model=llama_micro", *sweep.trials[4].words, "seed=1", "run.name=s"]
    write(folder / "trial-0004", lr=0.05, words=words)
    sweep.save(folder)
    return sweep


def test_the_best_its_command_and_the_importance_of_each_key_are_told(tmp_path: Path) -> None:
    sweep = searched(tmp_path)
    run = (tmp_path / "trial-0004").resolve()
    page = Reader(sweep_sections(sweep, tmp_path, {run: read_run(run)}))
    for shown in (
        "The best: trial 4validation/loss 2.0000, optimizer.lr=0.05 schedule=a.",
        "python train.py model=llama_micro optimizer.lr=0.05 schedule=a seed=1",
        "fANOVA of 11 finished trials",
        "So few trials tell little.",
        "best validation/loss",
        "11diverged-0.12b1min00sloss is NaN",
    ):
        assert shown in page.text or any(shown in each.get("aria-label", "") for _, each in page.tags), shown
    assert len([name for name, _ in page.tags if name == "polyline"]) == 12 + 1


def test_a_sweep_whose_trials_were_all_refused_has_a_page(tmp_path: Path) -> None:
    sweep = SweepFile(name="s", kind="search", metric="validation/loss", fingerprint="f", command="c")
    sweep.trials = [SweepTrial(number=0, values={"lr": "1"}, state="failed", reason="refused")]
    sweep.save(tmp_path)
    text = Reader(sweep_page(tmp_path)).text
    assert "1 trial: 1 failed" in text
    assert "refused" in text


def test_trials_are_numbered_by_whole_numbers(tmp_path: Path) -> None:
    sweep = searched(tmp_path)
    sweep.trials = sweep.trials[:3]
    page = str(sweep_sections(sweep, tmp_path, {}))
    assert ">1<" in page
    assert ">0.5<" not in page
    for trial in sweep.trials:
        trial.score = 1.745 + trial.number / 10_000
    sweep.trials.reverse()
    for number, trial in enumerate(sweep.trials):
        trial.number = number
    labels = re.findall(r'class="up"[^>]*>([^<]+)<', str(sweep_sections(sweep, tmp_path, {})))
    assert len({*labels}) == len(labels) > 2, labels


def test_scores_of_different_texts_are_listed_by_number_without_a_best(tmp_path: Path) -> None:
    sweep = searched(tmp_path)
    sweep.unranked = "The held-out texts differ."
    text = Reader(sweep_sections(sweep, tmp_path, {})).text
    assert text.startswith("No bestThe held-out texts differ.Trialstrial")
    assert text.index("0finished6.0000") < text.index("4finished2.0000")


def test_a_trial_that_trained_on_is_no_choice_of_its_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = SweepFile(name="s", kind="search", metric="validation/bits_per_byte", fingerprint="f", command="c")
    for number, (score, now) in enumerate([(3.2, 2.9), (3.1, 3.1)]):
        name = f"trial-{number:04d}"
        trial = SweepTrial(number=number, values={"optimizer.lr": f"0.{number}"}, state="finished", score=score)
        trial.runs = [SweepRun(folder=name, seed=1, state="finished", score=score, seconds=60)]
        sweep.trials.append(trial)
        write(tmp_path / name, lr=number, values=(8.0, 4.0, now))
    sweep.save(tmp_path)
    text = Reader(sweep_page(tmp_path)).text
    assert "3.1000bits per byte of the best" in text
    assert "The best: trial 1" in text
    assert compare([str(tmp_path)]) == 0
    assert "trial-0000: trained on after the search, to 2.9000" in " ".join(capsys.readouterr().out.split())
    assert "trial-0000trained on after the search, to 2.9000; 3.2000 is its trial's score" in text
