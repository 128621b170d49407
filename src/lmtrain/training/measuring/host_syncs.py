"""Count how often the host waits for a value of the device, in any loop, compiled or not.

torch's profiler sees every `aten::_local_scalar_dense` (item(), float(), bool()) and, on a GPU, every wait of the CUDA
runtime; `tolist()` and `numpy()` of a CPU tensor touch no operator and are counted by hand.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

WAITS: Final = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "hipStreamSynchronize")
ON_CPU: Final = ("aten::_local_scalar_dense",)
BY_HAND: Final = ("tolist", "numpy")


class HostSyncs:
    """Counts between `start()` and `stop()`."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._trace = profile(activities=activities)
        self._originals: dict[str, Callable[..., Any]] = {}
        self._num_by_hand = 0

    def start(self) -> None:
        """Begin to count."""
        for name in BY_HAND:
            self._originals[name] = getattr(torch.Tensor, name)
            setattr(torch.Tensor, name, self._counted(self._originals[name]))
        self._trace.start()

    def stop(self) -> int:
        """Return how many there were."""
        self._trace.stop()
        for name, original in self._originals.items():
            setattr(torch.Tensor, name, original)
        if torch.cuda.is_available():
            return sum(event.name in WAITS for event in self._events())
        return self._num_by_hand + sum(event.name in ON_CPU and not _of_optimizer(event) for event in self._events())

    def _events(self) -> Sequence[FunctionEvent]:
        return self._trace.events() or []

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, *words: Any, **named: Any) -> Any:
            self._num_by_hand += tensor.requires_grad or tensor.is_floating_point()  # indices are not the device's
            return original(tensor, *words, **named)

        return call


def _of_optimizer(event: FunctionEvent) -> bool:
    """Return whether the CPU's fused AdamW reads its step counts here; a GPU's does not."""
    parent = event.cpu_parent
    return parent is not None and ("fused_adam" in parent.name or _of_optimizer(parent))
