from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.run.execution import start as start_module
from lmtrain.run.execution.start import start
from lmtrain.run.schema.node import Node
from lmtrain.run.settings import TrainerSettings
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_folder import RunFolder
from tests.configs import config_with


def make_job(root: Path, *, name: str = "cat", resume: str = "auto", **trainer: int) -> Job:
    settings = TrainerSettings(**{"devices": 1, "num_nodes": 1, **trainer})
    config = config_with(trainer=settings, resume=resume, data=Node("data", {"folder": "x"}))
    return Job(config=config, overrides=["seed=1"], name=name, root=str(root))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Note which way a job was started instead of training it: here gives 5, on ranks of its own 6."""
    calls: list[tuple[str, Any]] = []
    monkeypatch.setattr("lmtrain.run.execution.run.execute", lambda job: calls.append(("here", job)) or 5)
    monkeypatch.setattr(start_module, "prepare_data", lambda job: calls.append(("prepare", job)))
    monkeypatch.setattr(
        start_module, "launch", lambda path, **settings: calls.append(("ranks", {"path": path, **settings})) or 6
    )
    return calls


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("kind", [ConfigurationError, DataError, EnvironmentProblem])
def test_a_model_or_text_that_is_refused_leaves_no_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool, kind: type[Exception]
) -> None:
    def refuse(job: Any) -> int:
        raise kind("model.num_heads=3 does not divide model.width=128")

    monkeypatch.setattr(start_module, "train", refuse)
    job = make_job(tmp_path)
    if existed:
        job.folder.mkdir(parents=True)
    with pytest.raises(kind, match="num_heads"):
        start(job, outer=None)
    assert job.folder.exists() == existed


def test_a_new_run_with_nothing_left_to_train_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_module, "train", lambda job: 0)
    job = make_job(tmp_path)
    assert start(job, outer=None) == 0
    assert not job.folder.exists()


def test_a_new_start_renames_the_older_run_and_loses_nothing(
    tmp_path: Path, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(tmp_path, name="pets/cat")
    for content in ("first", "second", "third"):
        start(replace(job, config=replace(job.config, resume="never")), outer=None)
        (job.folder / "metrics.jsonl").write_text(content)
    kept = {path.name: (path / "metrics.jsonl").read_text() for path in job.folder.parent.iterdir()}
    assert kept == {"cat.before-1": "first", "cat.before-2": "second", "cat": "third"}
    assert len(RunFolder(job.folder).attempts()) == 1
    assert f"{job.folder} is now {job.folder}.before-1; the new run starts at step 0." in capsys.readouterr().err
