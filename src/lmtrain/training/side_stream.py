"""Copies between host and device while the device computes: on CUDA on a second stream, elsewhere at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

Result = TypeVar("Result")


@final
@dataclass(frozen=True)
class PendingCopies(Generic[Result]):
    """The results of copies, to be read only after their end; `event` None: they are done."""

    result: Result
    device: torch.device
    event: Any = None

    def wait(self) -> None:
        """Wait for the end on the host."""
        if self.event is not None:
            self.event.synchronize()

    def hold_compute(self, *used: Tensor) -> None:
        """Let the device's work from now on wait for the end; `used` are copies read by that work."""
        if self.event is None:
            return
        compute = torch.cuda.current_stream(self.device)
        compute.wait_event(self.event)
        for tensor in used:
            tensor.record_stream(compute)  # or the side stream could have its memory while it is still read


@final
class SideStream:
    """A second stream of a device, if it has any."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, copies: Callable[[], Result], *, of_computed: bool) -> PendingCopies[Result]:
        """Start copies; `of_computed`: of the device's earlier work."""
        if self._stream is None:
            return PendingCopies(copies(), self._device)
        if of_computed:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            result = copies()
            return PendingCopies(result, self._device, self._stream.record_event())
