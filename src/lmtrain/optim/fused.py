"""The conditions of torch's fused Adam kernel: one launch a step, and no wait for the device."""

from collections.abc import Iterable

from torch import Tensor
from torch.optim import Optimizer

from lmtrain.errors import ConfigurationError
from lmtrain.optim.sharded import local

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


def choose_fused(parameters: Iterable[Tensor], *, wanted: bool | None) -> bool:
    """Return the wanted choice; None means where the device can.

    A model on the meta device is a rehearsal without steps: it fuses nothing and is refused nothing.
    """
    devices = {parameter.device.type for parameter in parameters}
    can = devices <= FUSED_DEVICES
    if wanted and not can and devices != {"meta"}:
        without = ", ".join(sorted(devices - FUSED_DEVICES))
        msg = f"optimizer.fused=true: torch has no fused kernel for {without}. Did you mean optimizer.fused=null?"
        raise ConfigurationError(msg)
    return can and wanted is not False


def can_fold(optimizer: Optimizer) -> bool:
    """Return whether the optimizer's kernel can divide gradients while reading them: torch's fused ones, unsharded."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    return all(local(parameter) is parameter for group in optimizer.param_groups for parameter in group["params"])


def fold_into_step(optimizer: Optimizer, divisor: Tensor) -> None:
    """Let a dividing kernel divide gradients by `divisor` [] in its next step: one pass over them less.

    It divides in fp32: gradients differ from multiplied ones in the last place.
    """
    setattr(optimizer, "grad_scale", divisor.float())  # noqa: B010  # torch declares it nowhere
