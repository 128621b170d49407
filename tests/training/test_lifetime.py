import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmtrain.training.lifetime import die_with_loader

CHILD = """
import os, time
from lmtrain.training.lifetime import die_with_parent
die_with_parent(os.getppid())
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()


@pytest.mark.faults
def test_child_ends_with_a_parent_that_was_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.stdout.close()


def test_child_whose_parent_is_already_gone_ends_at_once():
    code = "from lmtrain.training.lifetime import die_with_parent; die_with_parent(1_000_001)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9


def _start_a_child_that_dies_with_us(pipe):
    child = multiprocessing.get_context("fork").Process(target=_report_and_wait, args=(pipe,))
    child.start()
    child.join()


def _report_and_wait(pipe):
    die_with_loader(0)
    pipe.send(os.getpid())
    signal.pause()


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_loader_s_worker_is_gone_when_its_trainer_was_killed():
    receiver, sender = multiprocessing.Pipe(duplex=False)
    trainer = multiprocessing.get_context("fork").Process(target=_start_a_child_that_dies_with_us, args=(sender,))
    trainer.start()
    child = receiver.recv()
    sender.close()
    os.kill(trainer.pid or 0, signal.SIGKILL)
    trainer.join()
    try:
        assert receiver.poll(10), "the pipe stays open as long as the child lives"
        with pytest.raises(EOFError):
            receiver.recv()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
