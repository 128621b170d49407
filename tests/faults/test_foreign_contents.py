"""Checkpoints of right hashes and hand-made contents are refused in one line, before a step is trained."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtrain.storage.hashed_folder import read_manifest, write_atomically
from tests import tiny

WORDS = ["run.name=a", "callbacks.checkpoint.every_steps=2"]
WEIGHT = "language_model.head.weight"
FORGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a list": (lambda _: [1], "state.pt.*state_dict"),
    "no weights": (lambda state: {**state, "state_dict": None}, "state.pt.*state_dict"),
    "integer weights": (
        lambda state: {**state, "state_dict": {name: one.int() for name, one in state["state_dict"].items()}},
        "float32",
    ),
    "a short weight": (
        lambda state: {**state, "state_dict": {**state["state_dict"], WEIGHT: torch.zeros(1, 32)}},
        rf"{WEIGHT} has shape \[1, 32\]",
    ),
    "no optimizer": (lambda state: {**state, "optimizer_states": []}, "optimizer_states"),
    "no loops": (lambda state: {**state, "loops": {}}, "fit_loop"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert tiny.train(folder, *WORDS, "budget.steps=2").returncode == 0
    return folder


@pytest.mark.faults
@pytest.mark.parametrize("kind", FORGED)
def test_contents_are_checked(kind: str, trained: Path, tmp_path: Path) -> None:
    change, pattern = FORGED[kind]
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    checkpoint = tmp_path / "runs/a/checkpoints/step_00000002"
    facts = {name: value for name, value in read_manifest(checkpoint).items() if name != "files"}
    forged = change(torch.load(checkpoint / "state.pt", weights_only=True))
    write_atomically(checkpoint, facts=facts, write=lambda folder: torch.save(forged, folder / "state.pt"))
    ended = tiny.train(tmp_path, *WORDS, "budget.steps=4")
    assert ended.returncode == 3, ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("lmtrain:"))
    assert re.search(pattern, line), line
    assert len(tiny.losses(tmp_path / "runs/a")) == 2
