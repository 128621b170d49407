"""Tell where torch's fused Adam kernel runs: one launch a step, and no wait for the device."""

from collections.abc import Iterable

from torch import Tensor

from lmtrain.errors import ConfigurationError

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


def can_fuse(parameters: Iterable[Tensor]) -> bool:
    """Tell whether every parameter lives where torch has a fused kernel."""
    return all(parameter.device.type in FUSED_DEVICES for parameter in parameters)


def choose_fused(parameters: Iterable[Tensor], *, wanted: bool | None) -> bool:
    """Return what was wanted; None means where the device can.

    A model on the meta device is a rehearsal, which never steps: it fuses nothing and is refused nothing.

    Raises:
        ConfigurationError: Fused on a device without such a kernel.
    """
    devices = {parameter.device.type for parameter in parameters}
    can = devices <= FUSED_DEVICES
    if wanted and not can and devices != {"meta"}:
        without = ", ".join(sorted(devices - FUSED_DEVICES))
        msg = f"optimizer.fused=true: torch has no fused kernel for {without}; nearest valid: optimizer.fused=null."
        raise ConfigurationError(msg)
    return can and wanted is not False
