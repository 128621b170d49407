"""What a CPU shows: copies are done at once. Streams and events themselves need a GPU."""

import mmap

import pytest
import torch

from lmtrain.training.side_stream import CudaSideStream, page_locked


class Runtime:
    """A CUDA runtime that locks pages, or refuses to."""

    def __init__(self, code):
        self.code, self.locked = code, {}

    def cudaHostRegister(self, address, num_bytes, flags):  # noqa: N802
        assert flags == 1
        if not self.code:
            self.locked[address] = num_bytes
        return self.code

    def cudaHostUnregister(self, address):  # noqa: N802
        del self.locked[address]


def test_pages_are_locked_until_they_are_given_back(monkeypatch):
    runtime, buffer = Runtime(0), mmap.mmap(-1, mmap.PAGESIZE)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    undo = page_locked(buffer)
    assert list(runtime.locked.values()) == [mmap.PAGESIZE]
    undo()
    assert runtime.locked == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compute_waits_for_a_copy_before_it_changes_what_is_copied():
    device, buffer = torch.device("cuda"), mmap.mmap(-1, 1 << 28)
    side, host = CudaSideStream(device), torch.frombuffer(buffer, dtype=torch.uint8)
    undo, source = page_locked(buffer), torch.ones(1 << 28, dtype=torch.uint8, device=device)
    copies = side.start(lambda: host.copy_(source, non_blocking=True), of_computed=True)
    copies.end.hold_compute()
    source.zero_()
    copies.end.wait()
    assert copies.end.is_past()
    assert bool(host.all())
    undo()
