"""Held against submitit's executor for this machine: the same calls, with processes in the place of SLURM's jobs."""

import time
from pathlib import Path

import pytest

from lmtrain.composition.execution.searching.slurm_runner import SlurmRunner
from lmtrain.composition.stored_runs.job import Job
from lmtrain.errors import DataError
from tests.configs import default_config


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
