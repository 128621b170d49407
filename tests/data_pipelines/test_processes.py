"""Jobs in processes, and the lines of progress."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from data_pipelines.processes import run_jobs
from lmtrain.errors import DataError, EnvironmentProblem


@dataclass(frozen=True)
class Sleep:
    """Leave a file named after the process, then sleep, fail or die."""

    folder: Path

    def __call__(self, job):
        (self.folder / f"pid-{os.getpid()}").touch()
        print("a library's own words")
        if job == "fail":
            raise DataError("no such text")
        if job == "die":
            os.kill(os.getpid(), 9)
        time.sleep(float(job))
        return job


def pids(folder):
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("num_processes", [0, 3])
def test_jobs_come_back_in_order(tmp_path, num_processes):
    jobs = ["0.2", "0.01", "0.1", "0.03"]
    assert list(run_jobs(Sleep(tmp_path), jobs, num_processes=num_processes)) == jobs
    assert (pids(tmp_path) == [os.getpid()]) == (num_processes == 0)


def test_a_failure_in_a_worker_is_raised_here(tmp_path):
    with pytest.raises(DataError, match="no such text"):
        list(run_jobs(Sleep(tmp_path), ["0.01", "fail", "0.02"], num_processes=2))


def test_a_killed_worker_is_an_environment_problem(tmp_path):
    with pytest.raises(EnvironmentProblem, match=r"worker process ended with status -9 .*num_processes=0"):
        list(run_jobs(Sleep(tmp_path), ["0.01", "die", "0.02"], num_processes=2))
    assert wait_until(lambda: not any(map(is_alive, pids(tmp_path))))


@pytest.mark.faults
def test_no_worker_outlives_a_killed_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from data_pipelines.processes import run_jobs;"
        "from tests.data_pipelines.test_processes import Sleep;"
        "list(run_jobs(Sleep(Path(sys.argv[1])), ['60'] * 9, num_processes=2))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    assert wait_until(lambda: len(pids(tmp_path)) == 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: not any(map(is_alive, pids(tmp_path))))
