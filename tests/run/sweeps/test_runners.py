"""Runs on this machine, and in SLURM's queue as submitit's local executor has it."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lmtrain.errors import EXIT_TERMINATED, ConfigurationError, DataError, EnvironmentProblem
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps import runners as module
from lmtrain.run.sweeps.runners import LocalRunner, SlurmRunner, SlurmTrial, require_slurm
from lmtrain.tracking.run_folder import forget_stop, is_asked_to_stop
from tests.configs import default_config


def test_a_stop_cancels_a_waiting_job_and_asks_a_running_one_until_its_run_has_begun(tmp_path: Path) -> None:
    def submitted(name: str, state: str) -> tuple[SlurmTrial, list[str]]:
        cancelled: list[str] = []
        paths = SimpleNamespace(result_pickle=tmp_path / "result.pkl")
        job = SimpleNamespace(paths=paths, job_id="7", cancel=lambda: cancelled.append(name))
        return SlurmTrial(job, tmp_path / name, lambda job_id: state), cancelled

    waiting, cancelled = submitted("waiting", "PENDING")
    waiting.stop(15)
    assert (cancelled, waiting.exit_code()) == (["waiting"], EXIT_TERMINATED)
    running, cancelled = submitted("running", "RUNNING")
    running.stop(15)  # on its node Python still starts
    assert (cancelled, running.exit_code()) == ([], None)
    for _ in range(2):  # its folder is made, and forgets a wish at the attempt's start
        running.folder.mkdir(exist_ok=True)
        forget_stop(running.folder)
        assert running.exit_code() is None
        assert is_asked_to_stop(running.folder)


def test_a_job_gone_from_the_queue_has_failed_once_its_result_has_had_time_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUERY_SECONDS", 0.0)
    job = SimpleNamespace(paths=SimpleNamespace(result_pickle=tmp_path / "none"), job_id="7")
    states = iter(["RUNNING", "", "RUNNING", "", ""])  # a controller that was down forgets none
    trial = SlurmTrial(job, tmp_path, lambda job_id: next(states))
    assert [trial.exit_code() for _ in range(5)] == [None, None, None, None, 1]


@pytest.mark.parametrize(
    ("told", "why"), [("", "there is no sinfo"), ("echo fatal: no controller >&2; exit 1", "no c")]
)
def test_a_machine_of_no_cluster_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, why: str
) -> None:
    if told:
        (tmp_path / "sinfo").write_text(f"#!/bin/sh\n{told}\n")
        (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=rf"SLURM does not answer on this machine \(.*{why}"):
        require_slurm()


@pytest.mark.slow
@pytest.mark.distributed
def test_a_job_of_an_earlier_process_is_found_and_not_submitted_again(tmp_path: Path) -> None:
    job = Job(config=default_config(), overrides=[], name="trial-0000", root=str(tmp_path))
    path = tmp_path / "trial-0000.json"
    path.write_text("{}")  # no job: the process is refused, after its imports
    runners = [
        SlurmRunner(folder=tmp_path, parameters={"timeout_min": 5}, num_devices=1, uses_gpus=False, cluster="local")
        for _ in range(2)
    ]
    first = runners[0].start(job, path, slot=0)
    second = runners[1].start(job, path, slot=0)
    assert second.job.job_id == first.job.job_id
    deadline = time.monotonic() + 120
    while first.exit_code() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert first.exit_code() == DataError.exit_code
    assert runners[1].start(job, path, slot=0).job.job_id != first.job.job_id  # that one has ended


def test_runs_side_by_side_get_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = LocalRunner(parallel=2, num_devices=2, num_gpus=4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [runner.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in (0, 1)] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert runner.environment(1)["CUDA_VISIBLE_DEVICES"] == "6,7"


def test_more_runs_than_gpus_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"need 6, and this machine has 4; set sweep\.parallel=2"):
        LocalRunner(parallel=3, num_devices=2, num_gpus=4)
