"""The update of AdamW, and how optimizers keep their state: its format, its rounding, the frame of a step.

Rounding fp32 to the nearest bf16 loses every update below 1/512 of a weight; stochastic rounding keeps them on average
(https://arxiv.org/abs/2010.06192).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from lmtrain.errors import ConfigurationError
from lmtrain.optim.parameter_groups import Group
from lmtrain.optim.sharded import local


def restore_formats(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Put back every tensor of `saved` cast in loading: bf16 moments of fp32 weights, or the other way."""
    for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for parameter, key in zip(group["params"], saved_group["params"], strict=True):
            state: dict[str, Any] = optimizer.state.get(parameter, {})
            for name, loaded in state.items():
                kept = saved["state"][key][name]
                if isinstance(loaded, Tensor) and isinstance(kept, Tensor) and kept.dtype != loaded.dtype:
                    state[name] = kept.to(loaded.device)


LOW_BITS = 16  # the bits of an fp32 beyond a bf16's
SEED_STRIDE = 1_000_003  # the seeds of two groups meet only after a million steps


def copy_rounded_(target: Tensor, source: Tensor, *, generator: torch.Generator | None = None) -> None:
    """Write `source` into `target`; from fp32 into bf16 each value goes to a neighbour by chance, its mean kept.

    A sharded tensor's own part is written. The noise is `generator`'s, None for torch's own one.
    """
    target, source = local(target), local(source)
    if target.dtype != torch.bfloat16 or source.dtype != torch.float32:
        target.copy_(source)
        return
    noise = torch.randint(1 << LOW_BITS, source.shape, dtype=torch.int32, device=source.device, generator=generator)
    bits = noise.add_(source.view(torch.int32)).bitwise_and_(-1 << LOW_BITS)
    target.copy_(bits.view(torch.float32))


def noise_of_step(step: int, *, group: int, device: torch.device) -> torch.Generator:
    """Return the noise of a group in a step: alike on every rank, for copies of a weight to stay equal."""
    return torch.Generator(device).manual_seed(step + SEED_STRIDE * group)


def require_bf16(weights: Iterable[Tensor]) -> None:
    """Refuse to round weights by chance where all of them are exact; those on the meta device have no format yet."""
    if not any(weight.is_meta or weight.dtype == torch.bfloat16 for weight in weights):
        msg = "stochastic rounding has no effect: no weight is bf16; use a precision of bf16 weights, or leave it out."
        raise ConfigurationError(msg)


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


GroupStep = Callable[[list[nn.Parameter], Group, torch.Generator | None], object]


@torch.no_grad()
def step_groups(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None, step_group: GroupStep) -> Any:
    """Compute the closure's loss with gradients, step each group, and return the loss; None without a closure.

    `step_group` receives a group's parameters with gradients, at least one, the group, and the noise of its rounding.
    A group with `num_steps` counts its steps and rounds by chance, unless its `stochastic_rounding` is off.
    """
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for number, group in enumerate(optimizer.param_groups):
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if parameters:
            is_rounded = group.get("stochastic_rounding", "num_steps" in group)
            device = parameters[0].device
            noise = noise_of_step(group["num_steps"], group=number, device=device) if is_rounded else None
            step_group(parameters, group, noise)
        if "num_steps" in group:
            group["num_steps"] += 1
    return loss
