"""A run folder, and one MLflow store whose tables are made once a session (they take seconds) and copied."""

import shutil

import pytest

from lmtrain.tracking.mlflow.client import Store, default_uri, open_client
from lmtrain.tracking.run_folder import RunFolder


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    open_client(Store(root, default_uri(root), "lmtrain"))
    return root / "mlflow.db"


@pytest.fixture
def root(tmp_path, empty_store):
    root = tmp_path / "runs"
    root.mkdir()
    shutil.copy(empty_store, root / "mlflow.db")
    return root


@pytest.fixture
def run(root, monkeypatch):
    monkeypatch.chdir(root)  # away from this repository, whose own changes would go with the run
    folder = RunFolder(root / "a")
    folder.create()
    folder.start_attempt("optimizer:\n  lr: 0.1\n", ["optimizer.lr=0.1"])
    return folder
