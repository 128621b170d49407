from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.tracking.mlflow.client import default_uri
from lmtrain.tracking.mlflow.sync import ModelRegistry
from lmtrain.tracking.status import Status, write_status
from tests.tracking.sent_runs import client_of, stored


@pytest.mark.slow  # MLflow takes 3 seconds and more to import
def test_an_export_is_the_next_version_of_its_name_with_its_run_checkpoint_and_files(run, monkeypatch):
    write_status(run.path, Status("FINISHED", exit_code=0))
    folder, file = run.root / "exported model", run.root / "model.gguf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    file.write_bytes(b"weights")

    registry = ModelRegistry(run.path, "small model")  # the run itself was not there before
    registered = [
        registry.register(out, step=7, form=form, facts={"tokens": 70, "bits_per_byte": None})
        for out, form in ((folder, "hf"), (file, "gguf"))
    ]
    assert [each.version for each in registered] == ["1", "2"]
    found = [client_of(run).get_model_version("small model", each.version) for each in registered]
    assert [each.run_id for each in found] == [stored(run).info.run_id] * 2
    told = {"form": "hf", "checkpoint": "step_00000007", "tokens": "70", "folder": str(run.path)}
    assert found[0].tags == {f"lmtrain.{key}": value for key, value in told.items()}
    from mlflow.artifacts import download_artifacts

    monkeypatch.setenv("MLFLOW_TRACKING_URI", default_uri(run.root))
    there = download_artifacts("models:/small model/1")
    assert (Path(there) / "config.json").read_text() == "{}"
    assert found[1].source == file.as_uri()


@pytest.mark.parametrize(("name", "nearest"), [("team/model", "team-model"), (" ", "my-model")])
def test_a_name_that_cannot_be_one_is_refused_at_once(tmp_path, name, nearest):
    with pytest.raises(ConfigurationError, match=rf"--register '{name}': .* nearest valid: {nearest}\."):
        ModelRegistry(tmp_path, name)
