import pytest

from lmtrain.tracking import atomic_files
from lmtrain.tracking.run_log import Point, RunLog
from tests.tracking.sent_runs import client_of, history, send, stored

pytestmark = pytest.mark.slow  # MLflow takes 3 seconds and more to import


def test_the_score_of_an_older_checkpoint_is_sent_after_a_newer_one_s_once(run):
    log = RunLog(run.path)
    log.extend([Point(1000.0, 10, 10, {"train/loss": 3.0}), Point(1001.0, 20, 20, {"train/loss": 2.0})])
    for step, score in ((20, 12.0), (10, 11.5), (10, 11.5), (20, 12.5)):
        log.extend([Point(1002.0, step, step, {"evaluation/notes": score})])
        assert send(run)
    assert history(run, "evaluation/notes") == [(10, 11.5), (20, 12.0)]
    assert history(run, "train/loss") == [(10, 3.0), (20, 2.0)]


def test_links_of_a_folder_send_no_file_from_outside_it(run, tmp_path):
    (tmp_path / "secret").write_text("a key")
    (run.path / "report.html").symlink_to(tmp_path / "secret")
    (run.path / "report.md").write_text("its own")
    attempt = run.start_attempt("optimizer:\n  lr: 0.1\n", [])
    (attempt / "git.diff").unlink(missing_ok=True)
    (attempt / "git.diff").symlink_to(tmp_path / "secret")
    (run.path / "profile").symlink_to(tmp_path)
    (tmp_path / "memory_rank0.txt").write_text("a table")
    assert send(run)
    client, run_id = client_of(run), stored(run).info.run_id
    folders = [None, "attempts/2", "profile"]
    files = {item.path for folder in folders for item in client.list_artifacts(run_id, folder)}
    assert "report.md" in files
    assert not files & {"report.html", "attempts/2/git.diff", "profile/memory_rank0.txt"}


def test_parameter_that_a_resume_changes_becomes_a_tag(run):
    assert send(run)
    run.start_attempt("optimizer:\n  lr: 0.2\n  eps: 1.0\n", ["optimizer.eps=1.0"])
    assert send(run)
    data = stored(run).data
    assert data.params == {"optimizer.lr": "0.1", "optimizer.eps": "1.0"}
    assert data.tags["resume.2.optimizer.lr"] == "0.2"
    assert "resume.2.optimizer.eps" not in data.tags


def test_the_parameters_are_what_ran(run):
    written = {"compile": "none", "batch.micro_batch_sequences": "8"}
    atomic_files.write_json(run.path / "plan.json", {"resolved": written, "horizon": {"steps": 5}})
    config = (
        "model: {compile: {_target_: a.auto}}\ncompile:\n  _target_: a.auto\nbatch:\n  micro_batch_sequences: auto\n"
    )
    run.start_attempt(config, ["compile=auto"])
    assert send(run)
    params = stored(run).data.params
    assert written.items() <= params.items()
    assert not [key for key, value in params.items() if value.endswith("auto")]


def test_origin_of_the_run_goes_with_it(run):
    atomic_files.write_json(run.path / "plan.json", {"horizon": {"steps": 5}})
    atomic_files.write_json(run.path / "dataset.json", {"name": "python_stdlib"})
    run.start_attempt("optimizer:\n  lr: 0.1\n", ["optimizer.lr=0.1"])
    atomic_files.write_json(run.attempts()[-1] / "job.json", {"program": "lmtrain train"})
    atomic_files.write_json(run.attempts()[-1] / "data.json", {"fingerprint": "f" * 64})
    assert send(run)

    client, found = client_of(run), stored(run)
    files = {item.path for item in client.list_artifacts(found.info.run_id, "attempts/2")}
    expected = {"config.yaml", "overrides.txt", "git.json", "versions.json", "environment.json"}
    assert {f"attempts/2/{name}" for name in expected} <= files
    assert {"plan.json", "dataset.json"} <= {item.path for item in client.list_artifacts(found.info.run_id)}
    assert found.data.tags["lmtrain.data_fingerprint"] == "f" * 64
    assert found.data.tags["mlflow.source.name"] == "lmtrain train"
    assert found.data.tags["lmtrain.overrides"] == "optimizer.lr=0.1"
    assert client.get_experiment(found.info.experiment_id).tags["mlflow.experimentKind"] == "custom_model_development"
    assert found.info.run_name == "a"
