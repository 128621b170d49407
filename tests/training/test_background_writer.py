"""The process that writes checkpoints while training goes on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.training.checkpointing.background_writer import BackgroundWriter
from lmtrain.training.checkpointing.staging import SharedMemory, num_state_bytes, restore, stage
from lmtrain.training.side_stream import NoStream
from tests.training.checkpointing.jobs import Die, Refuse, Sum

CPU = torch.device("cpu")


@pytest.fixture
def writer():
    """A writer that is closed in the end."""
    writer = BackgroundWriter(CPU)
    yield writer
    writer.close()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def round_trip(thing):
    memory = SharedMemory()
    staged = stage(thing, memory=memory, side=NoStream()).staged
    return restore(staged, memory=memory)


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint16, torch.bool, torch.complex64]


@given(sizes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=5), dtype=st.sampled_from(DTYPES))
def test_tensors_come_back_to_the_last_bit(sizes, dtype):
    torch.manual_seed(0)
    tensors = [torch.randint(0, 255, (*size, 8), dtype=torch.uint8).float().to(dtype) for size in sizes]
    for tensor, back in zip(tensors, round_trip(tensors), strict=True):
        assert (back.dtype, back.shape) == (dtype, tensor.shape)
        assert back.untyped_storage().tolist() == tensor.untyped_storage().tolist()


def test_tensors_that_share_memory_share_it_again_and_take_it_once():
    whole = torch.arange(1000.0)
    memory = SharedMemory()
    staged = stage([whole, whole[10:20], whole.view(10, 100).T], memory=memory, side=NoStream()).staged
    first, part, turned = restore(staged, memory=memory)
    first[10] = -1
    assert (part[0], turned[10, 0]) == (-1, -1)
    assert turned.stride() == (1, 100)
    assert staged.pickle_start == 4032  # 4000 bytes, aligned


def test_quantized_state_comes_back():
    from torchao.optim.subclass_8bit import OptimState8bit

    state = OptimState8bit.zeros((64, 64), block_size=256)
    state.copy_(torch.randn(64, 64))
    assert torch.equal(round_trip(state).dequantize(), state.dequantize())


def test_a_copy_does_not_follow_what_happens_to_the_original():
    memory, weight = SharedMemory(), torch.ones(5)
    staged = stage(weight, memory=memory, side=NoStream()).staged
    weight.zero_()
    assert restore(staged, memory=memory).tolist() == [1.0] * 5


def test_the_bytes_of_quantized_state_are_those_of_its_parts():
    from torchao.optim.subclass_8bit import OptimState8bit

    state = OptimState8bit.zeros((64, 64), block_size=256)
    assert num_state_bytes(state) == 64 * 64 + 16 * 4 + 256 * 4
