import io
import json
import sys
from types import SimpleNamespace

import pytest

from lmtrain.tracking.mlflow import tracking as mlflow_tracking
from lmtrain.tracking.mlflow import tracking as sweeps
from lmtrain.tracking.mlflow.tracking import MlflowTracking
from lmtrain.tracking.run_folder import RunFolder
from tests.tracking.mlflow.test_sink import client_of, send, stored

pytestmark = pytest.mark.slow  # MLflow takes 3 seconds and more to import


def test_a_stopped_sweep_is_ended_by_a_process_of_its_own(root, monkeypatch):
    trial = RunFolder(root / "race" / "0", root=root)
    trial.create(sweep="lr-sweep")
    assert send(trial)
    asked = []

    def start(words, settings):
        asked.append((words, json.dumps(settings)))
        return SimpleNamespace(wait=lambda seconds: asked.append(seconds))

    monkeypatch.setattr(mlflow_tracking, "_start_process", start)
    MlflowTracking().finish_sweep(root, "lr-sweep", status="KILLED")
    (words, settings), seconds = asked
    assert (words, seconds) == (["lmtrain.tracking.mlflow.tracking"], mlflow_tracking.AT_ONCE_SECONDS)
    monkeypatch.setattr(sys, "stdin", io.StringIO(settings))
    monkeypatch.setattr(sweeps.signal, "alarm", lambda seconds: None)  # this process goes on
    sweeps.main()
    parent = stored(trial).data.tags["mlflow.parentRunId"]
    found = client_of(trial).get_run(parent).info
    assert (found.status, found.run_name) == ("KILLED", "race"), "named as the sweep's folder is"
