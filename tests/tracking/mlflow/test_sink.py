import math
import sqlite3

import pytest
import sqlalchemy

from lmtrain.tracking.mlflow import sink as mlflow_sink
from lmtrain.tracking.mlflow.sink import Sink, read_state
from lmtrain.tracking.mlflow.tracking import MlflowTracking
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial
from tests.points import append_point
from tests.tracking.sent_runs import client_of, history, send, stored

pytestmark = pytest.mark.slow  # MLflow takes 3 seconds and more to import


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_every_point_arrives_once_with_its_time(run):
    log = RunLog(run.path)
    for step in range(1, 1001):
        append_point(log, step, step * 512, {"train/loss": 1.0 / step}, time=1000.0 + step)

    assert send(run)
    assert history(run, "train/loss") == [(step, 1.0 / step) for step in range(1, 1001)]
    first = client_of(run).get_metric_history(read_state(run.path).run_id, "train/loss")[0]
    assert first.timestamp == (1000 + first.step) * 1000


def test_a_value_that_is_not_finite_is_left_out(run):
    append_point(RunLog(run.path), 3, 3, {"train/loss": math.nan, "train/lr": 0.1})
    assert send(run)
    assert "train/loss" not in stored(run).data.metrics
    assert stored(run).data.metrics["train/lr"] == 0.1


def test_nothing_is_written_outside_the_runs(run, tmp_path, monkeypatch):
    for name in ("cwd", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    append_point(RunLog(run.path), 1, 1, {"train/loss": 1.0})
    assert send(run)
    assert names(tmp_path) == ["cwd", "home", "runs"]
    assert names(tmp_path / "cwd") == names(tmp_path / "home") == []
    assert {"a", "mlflow.db", "mlflow-artifacts"} <= set(names(tmp_path / "runs"))


def test_no_secret_reaches_the_store(run):
    run.start_attempt("api_key: canary\nuri: http://me:canary@host\n", ["+hf_token=canary"])
    assert send(run)
    written = [path for path in run.root.rglob("*") if path.is_file()]
    assert any(path.name == "mlflow.db" for path in written)
    assert [path for path in written if b"canary" in path.read_bytes()] == []


def test_trials_of_a_sweep_hang_under_one_parent(root):
    trials = [RunFolder(root / "lr-sweep" / str(number), root=root) for number in (0, 1)]
    for trial in trials:
        trial.create(sweep="lr-sweep")
        assert send(trial)
    parents = {stored(trial).data.tags["mlflow.parentRunId"] for trial in trials}
    (parent,) = parents
    assert client_of(trials[0]).get_run(parent).info.status == "RUNNING"
    found = SweepTrial(number=1, values={"optimizer.lr": "0.1"}, state="finished", score=1.5)
    facts = {"name": "lr-sweep", "kind": "grid", "metric": "validation/loss", "fingerprint": "lr-sweep"}
    SweepFile(**facts, command="lmtrain train -m optimizer.lr=0.1,1", trials=[found]).save(root / "lr-sweep")
    MlflowTracking().finish_sweep(root / "lr-sweep", "lr-sweep", root=root, status="FAILED")
    ended = client_of(trials[0]).get_run(parent)
    assert (ended.info.run_name, ended.info.status) == ("lr-sweep", "FAILED")
    assert ended.data.metrics == {"best/validation/loss": 1.5}
    assert ended.data.tags["best.optimizer.lr"] == "0.1"
    assert ended.data.tags["mlflow.source.name"] == "lmtrain train"
    assert ended.data.tags["lmtrain.command"] == "lmtrain train -m optimizer.lr=0.1,1"
    assert [item.path for item in client_of(trials[0]).list_artifacts(parent)] == ["sweep.json"]


def test_a_sweep_on_a_dead_server_ends_with_a_line_and_no_password(root, capsys):
    MlflowTracking(tracking_uri="http://me:canary@127.0.0.1:9").finish_sweep(root / "lr-sweep", "lr-sweep", root=root)
    err = capsys.readouterr().err
    assert "sweep lr-sweep as running" in err
    assert "canary" not in err


@pytest.mark.faults
def test_a_store_locked_by_another_program_gets_each_point_once_when_it_opens(run, monkeypatch):
    monkeypatch.setattr(mlflow_sink, "FIRST_PAUSE_SECONDS", 0.01)
    text, patient = sqlalchemy.sql.text, "20000"  # ms that MLflow itself waits for the lock, with each call
    monkeypatch.setattr("mlflow.store.db.utils.sql.text", lambda said: text(said.replace(patient, "50")))
    log = RunLog(run.path)
    append_point(log, 1, 1, {"train/loss": 1.0})
    assert send(run)
    append_point(log, 2, 2, {"train/loss": 0.5})
    other = sqlite3.connect(run.root / "mlflow.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    failures, fail = [], Sink.fail

    def opened_after_three(sink, error):
        failures.append(str(error))
        if len(failures) == 3:
            other.execute("ROLLBACK")
        fail(sink, error)

    monkeypatch.setattr(Sink, "fail", opened_after_three)
    assert send(run, drain_seconds=60.0)
    other.close()
    assert len(failures) == 3
    assert all("database is locked" in failure for failure in failures)
    assert history(run, "train/loss") == [(1, 1.0), (2, 0.5)]
