import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking.mlflow.client import Store, default_uri, open_client
from lmtrain.tracking.mlflow.sync import sync
from lmtrain.tracking.run_log import RunLog
from lmtrain.tracking.status import Status, write_status
from tests.points import append_point


@pytest.mark.slow
def test_password_that_was_not_kept_is_asked_for_again(run):
    run.note({"mlflow": {"tracking_uri": "postgresql://[redacted]@h/x", "experiment": "lmtrain"}})
    with pytest.raises(ConfigurationError, match=r"give logger.tracking_uri again"):
        sync(run.path)


@pytest.mark.slow
def test_password_of_the_environment_is_taken_from_there(run, monkeypatch):
    run.note({"mlflow": {"tracking_uri": "http://me:${oc.env:CANARY_PW}@127.0.0.1:9", "experiment": "lmtrain"}})
    with pytest.raises(ConfigurationError, match=r"CANARY_PW is not set here; set it, or give logger.tracking_uri"):
        sync(run.path)
    monkeypatch.setenv("CANARY_PW", "canary-of-1-day")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentProblem, match=r"MLflow at http://\S+@127.0.0.1:9 failed") as failure:
        sync(run.path, seconds=0.0)
    assert "canary-of-1-day" not in str(failure.value)


@pytest.mark.parametrize(
    "address",
    [
        "http://evil.example/${oc.env:CANARY_PW}",
        "http://me:${oc.env:CANARY_PW}@evil.example",
        "http://${oc.env:CANARY_PW}.evil.example",
        "http://team.example:5000@evil.example",
        "http://evil.example\\@team.example:5000",
        "http://team.example:5000.evil.example",
        "postgresql://evil.example/x",
        "sqlite:////tmp/not-there/of-somebody.db",
    ],
)
def test_a_store_that_nobody_typed_is_sent_nothing(run, address, monkeypatch):
    monkeypatch.setenv("CANARY_PW", "canary-of-1-day")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://team.example:5000")
    monkeypatch.setattr("lmtrain.tracking.mlflow.sync.follow", lambda *_, **__: pytest.fail("sent"))
    run.note({"mlflow": {"tracking_uri": address, "experiment": "lmtrain"}})
    with pytest.raises(ConfigurationError, match="typed by nobody here before") as refusal:
        sync(run.path)
    assert "canary-of-1-day" not in str(refusal.value)


@pytest.mark.parametrize("address", ["${oc.env:TEAM}", "https://me:${oc.env:CANARY_PW}@typed.example/x"])
def test_a_store_of_this_person_is_used_again(run, address, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TEAM", "https://team.example")
    monkeypatch.setenv("CANARY_PW", "canary-of-1-day")
    sent: list[str] = []
    monkeypatch.setattr(
        "lmtrain.tracking.mlflow.sync.follow", lambda _, store, **__: sent.append(store.tracking_uri) or True
    )
    sync(run.path, tracking_uri="https://me:other@TYPED.example/y")
    run.note({"mlflow": {"tracking_uri": address, "experiment": "lmtrain"}})
    sync(run.path)
    assert sent[1].startswith(("https://team.example", "https://me:canary-of-1-day@typed.example/x"))
    assert "other" not in (tmp_path / "state/lmtrain/tracking_servers").read_text()


@pytest.mark.slow
def test_replay_is_complete_and_may_be_repeated(run):
    log = RunLog(run.path)
    for step in range(1, 101):
        append_point(log, step, step, {"train/loss": float(step)})
    write_status(run.path, Status("FINISHED", exit_code=0))
    first = sync(run.path)
    assert sync(run.path) == first

    client = open_client(Store(run.root, default_uri(run.root), "lmtrain"))
    assert len(client.get_metric_history(first, "train/loss")) == 100
    assert client.get_run(first).info.status == "FINISHED"


@pytest.mark.slow
def test_dead_server_is_an_environment_problem(run):
    write_status(run.path, Status("FINISHED", exit_code=0))
    with pytest.raises(EnvironmentProblem, match="failed: "):
        sync(run.path, tracking_uri="http://127.0.0.1:9", seconds=0.1)


@pytest.mark.slow
def test_a_database_closed_to_writing_is_told_at_once(run, monkeypatch):
    database = run.root / "mlflow.db"
    database.touch()

    open_any = type(database).open

    def refuse(path, *words, **settings):  # root may open anything
        if path == database:
            raise PermissionError(13, "Permission denied", str(path))
        return open_any(path, *words, **settings)

    monkeypatch.setattr(type(database), "open", refuse)
    with pytest.raises(EnvironmentProblem, match=r"PermissionError: .*Permission denied: .*mlflow\.db"):
        sync(run.path, seconds=600)
