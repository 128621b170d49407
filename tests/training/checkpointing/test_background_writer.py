"""A real process, which takes a second or more to start: few tests, each of a whole course."""

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lmtrain.training.checkpointing.background_writer import BackgroundWriter
from tests.training.checkpointing.jobs import Die, Refuse, Sleep, Sum

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")


@pytest.fixture
def writer():
    """A writer that is closed in the end."""
    writer = BackgroundWriter(CPU)
    yield writer
    writer.close()


def test_jobs_are_done_by_another_process_while_what_they_are_of_changes(writer, tmp_path):
    values, path = torch.ones(1000), tmp_path / "sum"
    writer.prepare(10_000)
    for number in (1, 2):
        writer.start(Sum(values, path))
        writer.hold_compute()
        assert writer.is_busy
        values += 1
        answer = writer.wait()
        assert (answer.problem, answer.num_bytes, writer.is_busy) == (None, 6, False)
        assert path.read_text() == f"{number}000.0"
    assert writer.wait() is None
    assert writer.poll() is None


def test_a_job_that_fails_and_a_process_that_dies_are_told_and_the_next_job_is_done(writer, tmp_path):
    writer.start(Refuse())
    assert writer.wait().problem == "No space left on device"
    writer.start(Die())
    assert writer.wait().problem == "the process that writes checkpoints ended (signal 9)"
    writer.start(Sum(torch.ones(2), tmp_path / "sum"))
    assert writer.wait().problem is None


PARENT = """
import sys, time
from pathlib import Path
import torch
from lmtrain.training.checkpointing.background_writer import BackgroundWriter
from tests.training.checkpointing.jobs import Sleep
writer = BackgroundWriter(torch.device("cpu"))
writer.start(Sleep(Path(sys.argv[1])))
time.sleep(60)
"""


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(process):
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_the_process_has_the_lowest_priority_and_ends_with_a_trainer_that_was_killed(tmp_path):
    path = tmp_path / "process"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    trainer = subprocess.Popen([sys.executable, "-c", PARENT, str(path)], env=environment)
    try:
        wait_for(path.exists)
        number, niceness = map(int, path.read_text().split())
        assert niceness == 19
        assert is_running(number)
    finally:
        trainer.kill()
        trainer.wait()
    wait_for(lambda: not is_running(number))


def test_a_job_in_flight_does_not_hold_up_the_end(tmp_path):
    path, writer = tmp_path / "process", BackgroundWriter(CPU)
    writer.start(Sleep(path))
    wait_for(path.exists)
    writer.close()
    assert not is_running(int(path.read_text().split()[0]))
    gc.collect()  # nothing is left that Python would warn of
