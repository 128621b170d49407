from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.tracking.mlflow.client import Store, artifacts_folder, check_uri, default_uri, find_or_create, open_client


def test_default_store_lies_beside_the_runs_whatever_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_uri(Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"


def test_files_lie_beside_the_database_and_a_server_chooses_its_own(tmp_path):
    assert artifacts_folder(tmp_path, "sqlite:////data/x.db") == Path("/data/mlflow-artifacts")
    assert Store(tmp_path, "postgresql://h/x", "e").artifacts_uri == (tmp_path / "mlflow-artifacts").as_uri()
    assert Store(tmp_path, "http://h:5000", "e").artifacts_uri is None


@pytest.mark.parametrize("uri", ["file:./mlruns", "mlruns", "redis://me:canary@h"])
def test_store_that_cannot_resume_is_refused_without_its_password(uri):
    with pytest.raises(ConfigurationError, match=r"logger.tracking_uri=") as caught:
        check_uri(uri)
    assert "canary" not in str(caught.value)


@pytest.mark.slow
def test_run_is_created_once_and_then_found(root):
    store = Store(root, default_uri(root), "lmtrain")
    client = open_client(store)
    first = find_or_create(client, store, {"lmtrain.run": "u1"}, name="a")
    assert find_or_create(client, store, {"lmtrain.run": "u1"}, name="a") == first
    assert find_or_create(client, store, {"lmtrain.run": "u2"}, name="a") != first
    experiment = client.get_experiment_by_name("lmtrain")
    assert experiment is not None
    assert experiment.artifact_location == (root / "mlflow-artifacts").as_uri()
