"""No GPU needed: a side stream that keeps a diary stands in for one."""

from itertools import islice

import pytest
import torch

from lmtrain.training.side_stream import NoStream, PendingCopies, side_stream
from lmtrain.training.token_batch import TokenBatch
from lmtrain.training.training_batches import BatchesAhead

CPU = torch.device("cpu")


class Diary:
    """A side stream that writes down when a copy starts, and when compute is told to wait for which."""

    def __init__(self):
        self.lines = []

    def start(self, copies, *, of_computed):
        assert not of_computed, "a batch is read from the host: its copy need not wait for what is computed"
        result = copies()
        number = int(ids(result)[0])
        self.lines.append(f"copy {number}")
        return PendingCopies(result, Ending(self.lines, number))


class Ending:
    def __init__(self, lines, number):
        self.lines, self.number = lines, number

    def is_past(self):
        return False

    def wait(self):
        raise AssertionError("the host never waits for a batch")

    def hold_compute(self, *used):
        self.lines.append(f"compute waits for {self.number} in {len(used)}")


def ids(batch):
    return batch.ids if isinstance(batch, TokenBatch) else batch


def numbered(count):
    return [torch.full((3,), number, dtype=torch.uint16) for number in range(count)]


def test_the_next_copy_starts_before_a_batch_is_used_and_compute_waits_for_its_own_alone():
    diary = Diary()
    for batch in islice(BatchesAhead(numbered(9), device=CPU, side=diary), 2):
        diary.lines.append(f"use {int(batch[0])}")
    first = ["copy 0", "copy 1", "compute waits for 0 in 1", "use 0"]
    assert diary.lines == [*first, "copy 2", "compute waits for 1 in 1", "use 1"]


def test_a_loader_that_is_left_early_is_closed():
    closed = []

    def endless():
        try:
            while True:
                yield torch.zeros(1)
        finally:
            closed.append(True)

    batches = iter(BatchesAhead(endless(), device=CPU, side=NoStream()))
    next(batches)
    del batches
    assert closed == [True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_arrive_on_the_gpu_as_they_were_while_it_is_busy():
    device = torch.device("cuda")
    expected = [torch.randint(0, 60_000, (64, 4097), dtype=torch.uint16).pin_memory() for _ in range(20)]
    busy = torch.randn(4096, 4096, device=device)
    for batch, wanted in zip(BatchesAhead(expected, device=device, side=side_stream(device)), expected, strict=True):
        busy = busy @ busy / 4096
        assert torch.equal(batch.long().cpu(), wanted.long())
