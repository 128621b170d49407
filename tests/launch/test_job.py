"""The ends of a job's ranks become one exit code; stopped ranks are reported."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.launch.rank_ends import RankEnd, StoppedRanks, is_stopped, root_cause
from lmtrain.launch.worker import run_guarded

REFUSED = RankEnd(rank=2, exit_code=4, time=3.0, message="no data")
KILLED = RankEnd(rank=1, exit_code=-9, time=2.0)
FIRST = RankEnd(rank=1, exit_code=1, time=1.0, message="ValueError: boom")
LATER = RankEnd(rank=0, exit_code=1, time=1.5, message="RuntimeError: connection closed by peer")
SILENT = RankEnd(rank=1, exit_code=1, time=2.0)
LOST = RankEnd(rank=0, exit_code=1, time=0.5, message="another rank failed", follows=True)


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ([LATER, KILLED, REFUSED], REFUSED),
        ([LATER, KILLED], KILLED),
        ([LATER, FIRST], FIRST),
        ([LOST, SILENT], SILENT),
        ([RankEnd(rank=1, exit_code=2, time=1.0), RankEnd(rank=0, exit_code=2, time=9.0)], None),
    ],
)
def test_the_root_cause_explains_the_other_ends(ends: list[RankEnd], cause: RankEnd | None) -> None:
    assert root_cause(ends) == (cause or ends[1])


def fail(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("a=1"), 2),
        (ValueError("boom"), 1),
        (SystemExit(7), 7),
        (SystemExit("sorry"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(None), 0),
    ],
)
def test_an_exception_of_a_rank_becomes_an_exit_code(error: BaseException, code: int) -> None:
    assert run_guarded(lambda: fail(error), None) == code


@pytest.mark.parametrize("kind", [ConfigurationError, ValueError, SystemExit])
def test_a_ranks_error_is_recorded_without_secrets(
    kind: type[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_guarded(lambda: fail(kind("postgresql://me:canary@h refused")), str(tmp_path / "error.json"))
    row = json.loads((tmp_path / "error.json").read_text())
    assert isinstance(row["timestamp"], int)
    for text in (row["message"], capsys.readouterr().err):
        assert "postgresql://[redacted]@h refused" in text


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process.pid
    process.kill()
    process.wait()


def send(process: int, number: signal.Signals) -> None:
    os.kill(process, number)
    expected = os.WSTOPPED if number == signal.SIGSTOP else os.WCONTINUED
    os.waitid(os.P_PID, process, expected | os.WNOWAIT)


@pytest.mark.faults
def test_a_stopped_rank_is_reported_once_and_again_when_it_continues(child: int) -> None:
    watch, processes = StoppedRanks(num_ranks=2, grace_seconds=60), {1: child}
    assert watch.notices(processes, now=0) == []
    send(child, signal.SIGSTOP)
    assert watch.notices(processes, now=100) == []
    (line,) = watch.notices(processes, now=111)
    assert line.startswith(f"rank 1 of 2 (process {child}) has been stopped for 11 s")
    assert f"kill -CONT {child}" in line
    assert watch.notices(processes, now=200) == []
    send(child, signal.SIGCONT)
    assert watch.notices(processes, now=201) == ["rank 1 of 2 continues."]
    assert watch.notices(processes, now=300) == []


@pytest.mark.faults
def test_a_stop_request_beside_a_stopped_rank_says_at_once_how_long_it_waits(child: int) -> None:
    watch, processes = StoppedRanks(num_ranks=2, grace_seconds=60), {1: child}
    send(child, signal.SIGSTOP)
    (line,) = watch.notices(processes, now=0, is_ending=True)
    assert "waiting up to 60 s" in line
    assert watch.notices(processes, now=50, is_ending=True) == []


def test_a_child_that_has_ended_is_not_stopped() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_stopped(child.pid)
    child.wait()
