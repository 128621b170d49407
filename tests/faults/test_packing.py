"""Packed, masked and mixed runs too go on after kill -9 as if nothing had happened."""

import json
from pathlib import Path

import pytest

from lmtrain.data.synthetic import synthetic
from tests import tiny
from tests.faults.test_resume import RESUMABLE, killed


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is typed for a packed run, and for one that mixes two folders and changes their weights half-way."""
    folders = [
        synthetic(root=str(tmp_path_factory.mktemp(name)), vocab_size=512, num_tokens=20_000, seed=seed)
        for seed, name in enumerate(("web", "math"))
    ]
    return {
        "best_fit": ["packing=best_fit", "packing.document_mask=true"],
        "mixture": [
            "data=mixture",
            f"data.sources.web.path={folders[0]}",
            "data.sources.web.weight=0.7",
            f"data.sources.math.path={folders[1]}",
            "data.sources.math.weight=0.3",
            "data.schedule=[{from:0.5,weights:{web:1,math:3}}]",
        ],
    }


@pytest.mark.faults
@pytest.mark.parametrize(("name", "workers"), [("best_fit", 0), ("mixture", 0), ("mixture", 2)])
def test_a_run_killed_goes_on_bit_for_bit(
    name: str, workers: int, words: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "mixture":
        monkeypatch.setattr(tiny, "TINY", [word for word in tiny.TINY if not word.startswith("data")])
    command = [*RESUMABLE, *words[name]]
    whole = tiny.train(tmp_path, *command, "run.name=whole")
    assert whole.returncode == 0, whole.stderr
    told = {"best_fit": "packing=best_fit: ", "mixture": "epochs in 24 steps: web 0.1"}[name]
    assert told in whole.stdout
    again = [*command, "run.name=a", f"data.num_workers={workers}", *killed(13, 2)]
    assert tiny.train(tmp_path, *again).returncode == -9
    finished = tiny.train(tmp_path, *again)
    assert finished.returncode == 0, finished.stderr
    assert tiny.losses(tmp_path / "runs/a") == tiny.losses(tmp_path / "runs/whole")


@pytest.mark.faults
def test_other_weights_do_not_go_on_from_a_checkpoint_of_these_and_another_budget_does(
    words: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "TINY", [word for word in tiny.TINY if not word.startswith("data")])
    assert tiny.train(tmp_path, *words["mixture"], "budget.steps=2", "run.name=a").returncode == 0
    refused = tiny.train(tmp_path, *words["mixture"], "data.sources.web.weight=0.6", "budget.steps=4", "run.name=a")
    assert refused.returncode == 2
    assert "data.sources=web 0.6667, math 0.3333; from 0.5" in refused.stderr
    assert tiny.train(tmp_path, *words["mixture"], "budget.steps=4", "run.name=a").returncode == 0
    noted = sorted((tmp_path / "runs/a/attempts").glob("*/data.json"))
    first, longer = (json.loads(file.read_text())["phases"] for file in noted)
    assert len(first) == 2
    assert longer == first, "another budget moves no phase of the steps already trained"
