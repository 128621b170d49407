"""One AdamW update of many parameters: all at once as torch does it, or each in fp32 and rounded by chance."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from lmtrain.optim.parameter_groups import Group
from lmtrain.optim.rounding import copy_rounded_
from lmtrain.optim.sharded import local

State = dict[str, Tensor]
MOMENTS = ("exp_avg", "exp_avg_sq")


def start_state(parameter: nn.Parameter, *, fused: bool, moments_dtype: torch.dtype | None = None) -> State:
    """Return the state before the first step; None keeps the moments in the parameter's own format.

    Only a fused kernel reads the step's count on the device; elsewhere the host does, and so keeps it.
    """
    moments = {name: torch.zeros_like(parameter, dtype=moments_dtype) for name in MOMENTS}
    return {"step": torch.zeros((), device=parameter.device if fused else "cpu"), **moments}


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return a parameter's existing gradient."""
    assert parameter.grad is not None
    return parameter.grad


@torch.no_grad()
def update(parameters: Sequence[nn.Parameter], states: Sequence[State], group: Group) -> None:
    """Move parameters by torch's own AdamW; each rank moves its part."""
    values = [local(parameter) for parameter in parameters]
    gradients = [local(gradient_of(parameter)) for parameter in parameters]
    first, second = ([local(state[name]) for state in states] for name in MOMENTS)
    _call_torch(values, gradients, first, second, [state["step"] for state in states], group)


@torch.no_grad()
def update_rounded(
    parameters: Sequence[nn.Parameter], states: Sequence[State], group: Group, *, noise: torch.Generator
) -> None:
    """Move each parameter in fp32, and round by chance the tensors kept in bf16: weights, moments or both."""
    for parameter, state in zip(parameters, states, strict=True):
        kept = [local(parameter), *(local(state[name]) for name in MOMENTS)]
        value, first, second = (tensor.float() for tensor in kept)  # fp32 ones are not copied
        _call_torch([value], [local(gradient_of(parameter)).float()], [first], [second], [state["step"]], group)
        for target, source in zip(kept, (value, first, second), strict=True):
            if target.dtype != source.dtype:
                copy_rounded_(target, source, generator=noise)


def _call_torch(
    values: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    group: Group,
) -> None:
    beta1, beta2 = group["betas"]
    adamw(
        values,
        gradients,
        first,
        second,
        [],
        steps,
        foreach=False if group["fused"] else None,
        fused=group["fused"],
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
