from collections.abc import Callable
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.execution.run import execute
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_log import RunLog, read_points
from lmtrain.tracking.status import read_status
from tests.points import append_point

MakeJob = Callable[..., Job]


pytestmark = pytest.mark.usefixtures("process_is_left_as_found")


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


def test_damaged_data_is_refused_before_training(tiny_job: MakeJob) -> None:
    job = tiny_job("budget.steps=1")
    execute(job)
    shard = next(Path(job.config.values["data"]["folder"]["root"]).glob("*/train_00000.ds"))
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train_00000\.ds has .* bytes instead of"):
        execute(tiny_job("budget.steps=1", name="other"))
