"""Worker processes and the lines of progress."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_pipelines import progress
from data_pipelines.processes import run_jobs
from data_pipelines.progress import StageProgress, stage
from lmtrain.errors import EnvironmentProblem

WORKER = """
import os, sys, time
from pathlib import Path

for line in sys.stdin:
    job = line.rstrip()
    (Path(sys.argv[1]) / f"pid-{os.getpid()}").touch()
    if job == "fail":
        sys.exit(7)
    if job == "die":
        os.kill(os.getpid(), 9)
    time.sleep(float(job))
    sys.stdout.write(line)
    sys.stdout.flush()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "lmtrain_test_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "lmtrain_test_worker"


def pids(folder):
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def run(module, folder, jobs, num_processes=2):
    return run_jobs(jobs, module=module, arguments=[str(folder)], num_processes=num_processes)


def test_jobs_come_back_in_order_from_several_processes(module, tmp_path):
    jobs = ["0.2", "0.01", "0.1", "0.03", "0.02", "0.11"]
    assert list(run(module, tmp_path, jobs, num_processes=3)) == jobs
    assert len(pids(tmp_path)) > 1


@pytest.mark.parametrize(
    ("job", "how"), [("fail", "failed with status 7"), ("die", r"was killed by signal 9 \(out of")]
)
def test_a_worker_that_ends_early_is_an_environment_problem(module, tmp_path, job, how):
    with pytest.raises(EnvironmentProblem, match=rf"worked on {job} {how}.*num_processes=0"):
        list(run(module, tmp_path, ["0.01", job, "0.02"]))
    assert wait_until(lambda: not any(map(is_alive, pids(tmp_path))))


def test_no_worker_stays_when_the_rest_is_not_wanted(module, tmp_path):
    jobs = run(module, tmp_path, ["0", "30", "30"])
    assert next(jobs) == "0"
    started = time.monotonic()
    jobs.close()
    assert time.monotonic() - started < 10
    assert not any(map(is_alive, pids(tmp_path)))


@pytest.mark.faults
def test_no_worker_outlives_a_killed_process(module, tmp_path):
    code = (
        "import sys; from data_pipelines.processes import run_jobs;"
        f"list(run_jobs(['0.3'] * 1000, module='{module}', arguments=[sys.argv[1]], num_processes=2))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    assert wait_until(lambda: len(pids(tmp_path)) == 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: not any(map(is_alive, pids(tmp_path))))


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("totals", "news"),
    [
        ({"total_tokens": 4_000_000}, {"tokens": 1_000_000, "text_bytes": 8_000_000}),
        ({"total_bytes": 8_000_000}, {"text_bytes": 2_000_000}),
        ({"total_documents": 400}, {"documents": 100, "text_bytes": 1_000_000}),
        ({}, {"fraction": 0.25, "documents": 3}),
        ({"total_tokens": 10}, {"fraction": 0.25, "tokens": 1}),
    ],
)
def test_the_time_left_comes_from_whichever_whole_is_known(totals, news, clock):
    done = StageProgress("encode", **totals)
    clock.now = 10.0
    done.advance(**news)
    assert str(done).startswith("  encode                   25%, 30s left, ")
    assert str(done).endswith(", 10.0 s")


def test_a_terminal_gets_a_live_bar_and_the_same_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.0)
    with stage("encode", total_bytes=8_000_000) as done:
        done.advance(text_bytes=2_000_000)
        done.advance(text_bytes=6_000_000)
    assert "\x1b[" in terminal.getvalue()
    assert "━" in terminal.getvalue()
    assert re.search(r"  encode +8\.0 MB, [\d.]+ MB/s, 0\.\d s\n$", terminal.getvalue())
