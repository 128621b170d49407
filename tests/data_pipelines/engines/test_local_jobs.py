import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from data_pipelines.engines import local_jobs
from data_pipelines.engines.local_jobs import run_job
from data_pipelines.stages.stage import PipelineJob
from lmtrain.errors import EnvironmentProblem


@dataclass(frozen=True)
class Touch:
    folder: Path
    failing: int = -1
    seconds: float = 0.0

    def __call__(self, task):
        (self.folder / f"task_{task}").write_text(str(os.getpid()))
        time.sleep(self.seconds)
        if task == self.failing:
            raise OSError("no room")


@pytest.fixture(autouse=True)
def extra():
    pytest.importorskip("datatrove.executor")


@pytest.mark.slow
def test_tasks_that_failed_are_run_again_and_the_others_are_not(tmp_path):
    with pytest.raises(EnvironmentProblem, match=r"2 of 3 tasks of a did not finish \(the first is 1\).*executor\.log"):
        run_job(PipelineJob("a", 3, Touch(tmp_path, failing=1)), tmp_path / "job", num_processes=1)
    assert "no room" in (tmp_path / "job" / "executor.log").read_text()
    (tmp_path / "task_0").unlink()
    run_job(PipelineJob("a", 2, Touch(tmp_path)), tmp_path / "job", num_processes=2)
    assert not (tmp_path / "task_0").exists()


def test_no_tasks_are_no_work(tmp_path):
    run_job(PipelineJob("a", 0, Touch(tmp_path)), tmp_path / "job", num_processes=2)
    assert not list(tmp_path.glob("task_*"))


@pytest.mark.slow
def test_the_share_of_tasks_that_are_done_is_told_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(local_jobs, "LOOK_SECONDS", 0.05)
    heard = []
    run_job(PipelineJob("a", 4, Touch(tmp_path, seconds=0.3)), tmp_path / "job", num_processes=1, advance=heard.append)
    assert heard == sorted(heard)
    assert set(heard) <= {0, 0.25, 0.5, 0.75, 1}
    assert len(set(heard)) > 2


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.faults
def test_no_task_outlives_a_killed_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from data_pipelines.engines.local_jobs import run_job;"
        "from data_pipelines.stages.stage import PipelineJob as Job;"
        "from tests.data_pipelines.engines.test_local_jobs import Touch; folder = Path(sys.argv[1]);"
        "run_job(Job('a', 2, Touch(folder, seconds=60)), folder / 'job', num_processes=2)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("task_*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    pids = [int(path.read_text()) for path in tmp_path.glob("task_*")]
    assert len(pids) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_alive, pids))
