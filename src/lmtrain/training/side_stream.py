"""Copies between host and device while the device computes.

On CUDA they have a stream of their own, and events say when they are done. Elsewhere a copy is done once asked for.
"""

import logging
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, final

import torch
from torch import Tensor
from typing_extensions import override

_LOG = logging.getLogger(__name__)
HOST_REGISTER_PORTABLE: Final = 1  # cudaHostRegisterPortable in cuda_runtime_api.h

Result = TypeVar("Result")


class Moment(Protocol):
    """The end of some copies."""

    def is_past(self) -> bool:
        """Return whether the copies are done, without waiting."""
        ...

    def wait(self) -> None:
        """Wait for it on the host."""
        ...

    def hold_compute(self, *used: Tensor) -> None:
        """Let the device's work from now on wait for it; `used` are copies read by that work."""
        ...


@dataclass(frozen=True)
class PendingCopies(Generic[Result]):
    """The results of copies, to be read only after their end."""

    result: Result
    end: Moment


class SideStream(Protocol):
    """Where copies run."""

    def start(self, copies: Callable[[], Result], *, of_computed: bool) -> PendingCopies[Result]:
        """Start copies; `of_computed`: of the device's earlier work."""
        ...


@final
class Past(Moment):
    """The end of immediate copies."""

    @override
    def is_past(self) -> bool:
        return True

    @override
    def wait(self) -> None:
        """There is nothing to wait for."""

    @override
    def hold_compute(self, *used: Tensor) -> None:
        """There is nothing to wait for."""


@final
class NoStream(SideStream):
    """Copy at once: for the CPU, and for devices with untried streams."""

    @override
    def start(self, copies: Callable[[], Result], *, of_computed: bool) -> PendingCopies[Result]:
        del of_computed
        return PendingCopies(copies(), Past())


@final
class CudaEnd(Moment):
    """An event on a side stream."""

    def __init__(self, event: Any, device: torch.device) -> None:
        self._event = event
        self._device = device

    @override
    def is_past(self) -> bool:
        return self._event.query()

    @override
    def wait(self) -> None:
        self._event.synchronize()

    @override
    def hold_compute(self, *used: Tensor) -> None:
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(self._event)
        for tensor in used:
            tensor.record_stream(compute)  # or the side stream could have its memory while it is still read


@final
class CudaSideStream(SideStream):
    """Copy on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    @override
    def start(self, copies: Callable[[], Result], *, of_computed: bool) -> PendingCopies[Result]:
        if of_computed:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            result = copies()
            return PendingCopies(result, CudaEnd(self._stream.record_event(), self._device))


def side_stream(device: torch.device) -> SideStream:
    """Return a second stream of a device, if it has any."""
    return CudaSideStream(device) if device.type == "cuda" else NoStream()


def page_locked(buffer: mmap.mmap) -> Callable[[], object]:
    """Lock a buffer's pages, for CUDA copies at full speed without a wait; return the call to undo that."""
    address = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()
    runtime: Any = torch.cuda.cudart()
    code = runtime.cudaHostRegister(address, len(buffer), HOST_REGISTER_PORTABLE)
    if int(code) != 0:
        _LOG.warning("CUDA could not lock %d bytes of host memory (%s): copies of checkpoints wait.", len(buffer), code)
        return lambda: None
    return lambda: runtime.cudaHostUnregister(address)


def touched(buffer: mmap.mmap) -> Callable[[], object]:
    """Look at every page of a buffer: the first copy need not wait for their mapping."""
    torch.frombuffer(buffer, dtype=torch.uint8)[:: mmap.PAGESIZE].sum()
    return lambda: None
