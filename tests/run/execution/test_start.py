from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.run.execution import start as start_module
from lmtrain.run.execution.start import start
from lmtrain.run.schema.node import Node
from lmtrain.run.settings import TrainerSettings
from lmtrain.run.stored_runs.job import Job, job_of_rank
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.status import Status, write_status
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


def test_one_rank_trains_in_this_process_with_the_job_on_disk(tmp_path: Path, started: list[Any]) -> None:
    job = make_job(tmp_path)
    assert start(job, outer=None) == 5
    assert started == [("here", job)]
    attempt = RunFolder(job.folder).attempts()[0]
    assert job_of_rank(attempt / "job.json").overrides == ["seed=1"]
    assert (attempt / "overrides.txt").read_text() == "seed=1\n"


def test_several_devices_are_ranks_of_their_own_and_the_data_is_ready_before_them(
    tmp_path: Path, started: list[Any]
) -> None:
    job = make_job(tmp_path, devices=2)
    assert start(job, outer=None) == 6
    assert [kind for kind, _ in started] == ["prepare", "ranks"]
    assert started[1][1] == {
        "path": job.folder / "attempts" / "1" / "job.json",
        "num_processes": 2,
        "run_folder": job.folder,
        "more_environment": {},
    }


def test_a_run_that_is_being_trained_is_not_started_twice(
    tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **settings: Any) -> Any:
        raise EnvironmentProblem("run.name=cat is already being trained")

    monkeypatch.setattr(start_module.RunFolder, "lock", refuse)
    with pytest.raises(EnvironmentProblem, match="already being trained"):
        start(make_job(tmp_path), outer=None)
    assert started == []
    assert make_job(tmp_path).folder.exists(), "the other process is at work in it"


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


def test_a_start_with_nothing_left_to_train_is_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, kept = make_job(tmp_path), []

    def train(job: Job, *, code: int, accepts: int) -> int:
        """Accept so many attempts, as a spike begins a second one."""
        folder = RunFolder(job.folder)
        for number in range(accepts):
            if number:
                folder.start_attempt("", [])
            folder.accept_newest_attempt()
        write_status(job.folder, Status("FINISHED"))
        return code

    for code, accepts in ((0, 1), (0, 0), (0, 2), (0, 0), (143, 0)):
        monkeypatch.setattr(start_module, "train", partial(train, code=code, accepts=accepts))
        assert start(job, outer=None) == code
        kept.append([each.name for each in RunFolder(job.folder).attempts()])
    assert kept == [["1"], ["1"], ["1", "2", "3"], ["1", "2", "3"], ["1", "2", "3", "4"]]


def test_a_new_run_with_nothing_left_to_train_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_module, "train", lambda job: 0)
    job = make_job(tmp_path)
    assert start(job, outer=None) == 0
    assert not job.folder.exists()


@pytest.mark.parametrize("name", ["../cat", "/cat", "a/../../cat", ".hidden"])
def test_a_name_cannot_leave_the_folder_of_runs(tmp_path: Path, started: list[Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"run\.name: "):
        start(make_job(tmp_path / "runs", name=name), outer=None)
    assert list(tmp_path.iterdir()) == []


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
