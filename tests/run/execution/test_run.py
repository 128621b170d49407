import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.run.execution import run as run_module
from lmtrain.run.execution.run import execute, train
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_log import RunLog, read_points
from lmtrain.tracking.status import read_status
from tests.configs import config_with
from tests.points import append_point

MakeJob = Callable[..., Job]


@pytest.fixture(autouse=True)
def _process_is_left_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a run sets for its whole process: the level of Lightning's loggers, and where compilers keep files."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    levels = {name: logging.getLogger(name).level for name in names}
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def breaking_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> tuple[Job, Callable[[], int]]:
    """Return a job, and the training of it that breaks off at step 7."""

    def fail(run: Any, checkpoint: Any) -> int:
        raise error

    job = Job(
        config=config_with(),
        overrides=[],
        name="cat",
        root=str(tmp_path),
    )
    run = SimpleNamespace(
        trainer=SimpleNamespace(global_step=7),
        context=SimpleNamespace(
            log=RunLog(job.folder), tokens_at=lambda step: 64 * step, dataset=SimpleNamespace(folder=tmp_path)
        ),
    )
    monkeypatch.setattr(run_module, "fit", fail)
    monkeypatch.setattr(run_module, "remember_folder", lambda config, folder: None)
    return job, lambda: train(job, run, None)


@pytest.mark.parametrize(
    ("error", "reason", "code"), [(EnvironmentProblem("full"), "full", 3), (KeyError("bug"), "KeyError: 'bug'", 1)]
)
def test_a_run_that_breaks_off_says_so_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, code: int
) -> None:
    job, train_it = breaking_off(tmp_path, monkeypatch, error)
    with pytest.raises(type(error)):
        train_it()
    ended = read_status(job.folder)
    assert ended is not None
    assert (ended.status, ended.exit_code, ended.step, ended.tokens) == ("FAILED", code, 7, 448)
    assert ended.reason == reason


def losses(job: Job) -> dict[int, float]:
    points = read_points(job.folder / "metrics.jsonl")
    return {point.step: point.metrics["train/loss"] for point in points if "train/loss" in point.metrics}


def test_a_run_trains_ends_goes_on_and_is_done(tiny_job: MakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    job = tiny_job()
    assert execute(job) == 0
    ended = read_status(job.folder)
    assert ended is not None
    assert (ended.status, ended.exit_code, ended.step, ended.tokens) == ("FINISHED", 0, 3, 192)
    assert list(losses(job)) == [1, 2, 3]
    capsys.readouterr()

    before = (job.folder / "metrics.jsonl").read_bytes()
    assert execute(job) == 0
    assert "\nNothing left to do: " in capsys.readouterr().out
    assert (job.folder / "metrics.jsonl").read_bytes() == before

    with pytest.raises(ConfigurationError, match=r"budget\.steps ends the run at step 2, which is already spent"):
        execute(tiny_job("budget.steps=2"))

    assert execute(tiny_job("budget.steps=5")) == 0
    straight = tiny_job("budget.steps=5", name="straight")
    assert execute(straight) == 0
    assert losses(job) == losses(straight), "going on gives the same losses to the last bit"


def test_a_log_goes_back_to_its_checkpoint_but_only_for_a_run_that_goes_on(tiny_job: MakeJob) -> None:
    job = tiny_job("budget.steps=3")
    execute(job)
    log = RunLog(job.folder)
    append_point(log, 4, 256, {"train/loss": 99.0})  # as after a crash: logged, but not saved
    log.close()
    for refused in (tiny_job("budget.steps=2"), tiny_job("seed=2"), tiny_job("model.vocab_size=100")):
        with pytest.raises(ConfigurationError):
            execute(refused)
        assert losses(job)[4] == 99.0
    execute(tiny_job("budget.steps=5"))
    logged = [point.step for point in read_points(job.folder / "metrics.jsonl") if "train/loss" in point.metrics]
    assert logged == [1, 2, 3, 4, 5]
    assert losses(job)[4] < 99.0


@pytest.mark.faults
@pytest.mark.parametrize(
    ("override", "message"), [("seed=2", "seed=2, there 1337"), ("model.width=32", "model.width=32, there 16")]
)
def test_a_checkpoint_of_another_run_is_refused_with_what_differs(
    tiny_job: MakeJob, override: str, message: str
) -> None:
    execute(tiny_job("budget.steps=1"))
    with pytest.raises(ConfigurationError, match=message):
        execute(tiny_job(override))


def test_damaged_data_is_refused_before_training(tiny_job: MakeJob) -> None:
    job = tiny_job("budget.steps=1")
    execute(job)
    shard = next(Path(job.config.values["data"]["folder"]["root"]).glob("*/train_00000.ds"))
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train_00000\.ds has .* bytes instead of"):
        execute(tiny_job("budget.steps=1", name="other"))
