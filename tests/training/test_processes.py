"""How a training process starts and ends."""

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
from lmtrain.training.stopping import (
    SIGNALS,
    StoppedEarly,
    ended_by_signals,
    stopping_at_once,
)
from tests.tiny import PROJECT, environment

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


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_raises_and_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    said = f"{number.name}: stopped before the first step"
    with pytest.raises(StoppedEarly, match=said) as stopped, stopping_at_once():
        os.kill(os.getpid(), number)
    assert stopped.value.number == number
    assert signal.getsignal(number) == before


def test_a_measurement_ends_in_a_line_with_the_signal_s_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert capsys.readouterr().err == "lmtrain: SIGTERM: stopped; nothing was to be kept\n"
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        os.kill(os.getpid(), signal.SIGINT)


TRY = """
import sys
from lmtrain.training.lean_import import UNUSED, import_lightning
import_lightning()
print(*(name for name in UNUSED if name in sys.modules))
import lightning.pytorch, scipy, torchmetrics
from lightning_utilities.core.imports import RequirementCache, package_available
mean = torchmetrics.MeanMetric()
mean.update(3.0)
print(float(mean.compute()), bool(RequirementCache("scipy")), package_available("scipy"))
"""


def test_lightning_comes_without_what_unused_metrics_want_and_leaves_nothing_changed() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", TRY], cwd=PROJECT, env=environment(), capture_output=True, text=True, check=True
    )
    assert finished.stdout.splitlines() == ["", "3.0 True True"]
