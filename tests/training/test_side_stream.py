"""What a CPU shows: copies are done at once. Streams and events themselves need a GPU."""

import mmap

import pytest
import torch

from lmtrain.training.side_stream import CudaSideStream, NoStream, page_locked, side_stream, touched


def test_without_a_stream_a_copy_is_done_when_it_was_asked_for():
    done = []
    copies = side_stream(torch.device("cpu")).start(lambda: done.append(1) or "result", of_computed=True)
    assert (copies.result, done) == ("result", [1])
    assert copies.end.is_past()
    copies.end.wait()
    copies.end.hold_compute(torch.ones(1))


def test_a_device_whose_streams_nobody_tried_has_none():
    assert isinstance(side_stream(torch.device("meta")), NoStream)


def test_touching_a_buffer_leaves_it_as_it_is():
    buffer = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    buffer[:5] = b"state"
    touched(buffer)()
    assert buffer[:6] == b"state\0"


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


def test_pages_that_cuda_cannot_lock_are_used_as_they_are_with_a_notice(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(2))
    page_locked(mmap.mmap(-1, mmap.PAGESIZE))()
    assert "could not lock 4096 bytes of host memory (2)" in caplog.messages[0]


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
