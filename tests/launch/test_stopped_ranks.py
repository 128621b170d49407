import os
import signal
import subprocess
import sys

import pytest

from lmtrain.launch.stopped_ranks import StoppedRanks, is_stopped


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.faults
def test_a_rank_that_stays_stopped_is_named_once_and_again_when_it_goes_on(child):
    watch, processes = StoppedRanks(2), {1: child}
    assert watch.news(processes, now=0) == []
    os.kill(child, signal.SIGSTOP)
    os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
    assert watch.news(processes, now=100) == []
    (line,) = watch.news(processes, now=111)
    assert line.startswith(f"rank 1 of 2 (process {child}) has been stopped for 11 s")
    assert f"kill -CONT {child}" in line
    assert watch.news(processes, now=200) == []

    os.kill(child, signal.SIGCONT)
    os.waitid(os.P_PID, child, os.WCONTINUED | os.WNOWAIT)
    assert watch.news(processes, now=201) == ["rank 1 of 2 goes on."]
    assert watch.news(processes, now=300) == []


def test_a_short_stop_is_not_told(child):
    watch, processes = StoppedRanks(2), {0: child}
    os.kill(child, signal.SIGSTOP)
    os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
    assert watch.news(processes, now=0) == []
    os.kill(child, signal.SIGCONT)
    os.waitid(os.P_PID, child, os.WCONTINUED | os.WNOWAIT)
    assert watch.news(processes, now=50) == []


def test_a_child_that_has_ended_and_was_not_waited_for_is_not_stopped():
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_stopped(child.pid)
    child.wait()
