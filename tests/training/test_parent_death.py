import contextlib
import multiprocessing
import os
import signal
import sys

import pytest

from lmtrain.training.parent_death import die_with_parent


def _start_a_child_that_dies_with_us(pipe):
    child = multiprocessing.get_context("fork").Process(target=_report_and_wait, args=(pipe,))
    child.start()
    child.join()


def _report_and_wait(pipe):
    die_with_parent()
    pipe.send(os.getpid())
    signal.pause()


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_process_is_gone_when_its_trainer_was_killed():
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
