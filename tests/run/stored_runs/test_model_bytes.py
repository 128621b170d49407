import json
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.stored_runs.model_bytes import model_bytes
from lmtrain.storage.hashed_folder import write_atomically
from tests.run.stored_runs.test_checkpoint_source import run_folder


def test_a_run_is_its_newest_checkpoint_wherever_it_lies(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", 5, 20)
    newest, older = (model_bytes(path, key="RUN") for path in (run, run / "checkpoints/step_00000005"))
    assert (newest.name, newest.path) == ("a/step_00000020", run / "checkpoints/step_00000020")
    assert (older.name, older.sha256 == newest.sha256) == ("a/step_00000005", False)
    run.rename(tmp_path / "b")
    assert model_bytes(tmp_path / "b", key="RUN").sha256 == newest.sha256


def test_an_imported_folder_is_its_manifest(tmp_path: Path) -> None:
    def write(text: str) -> str:
        def fill(folder: Path) -> None:
            (folder / "weights").mkdir()
            (folder / "weights/model.safetensors").write_text(text)
            (folder / "import.json").write_text("{}")

        write_atomically(tmp_path / "base", facts={}, write=fill)
        return model_bytes(tmp_path / "base", key="RUN").sha256

    assert write("x") == write("x") != write("y")


def test_a_folder_of_transformers_is_its_weights_and_its_settings(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": 1}))
    sums = []
    for weights in ("x", "y", "x"):
        (tmp_path / "model.safetensors").write_text(weights)
        sums.append(model_bytes(tmp_path, key="RUN").sha256)
    assert sums[0] == sums[2] != sums[1]
    with pytest.raises(ConfigurationError, match=r"RUN=.*none is neither a run"):
        model_bytes(tmp_path / "none", key="RUN")
