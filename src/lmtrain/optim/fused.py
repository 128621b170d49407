"""Tell where torch's fused Adam kernel runs: one launch a step, and no wait for the device."""

from collections.abc import Iterable

from torch import Tensor

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


def can_fuse(parameters: Iterable[Tensor]) -> bool:
    """Tell whether every parameter lives where torch has a fused kernel."""
    return all(parameter.device.type in FUSED_DEVICES for parameter in parameters)
