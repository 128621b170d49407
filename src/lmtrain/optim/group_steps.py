"""The frame of an optimizer's step: its closure, then group after group the parameters with gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lmtrain.optim.parameter_groups import Group
from lmtrain.optim.rounding import noise_of_step

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
            step_group(parameters, group, _noise(group, number, parameters[0].device))
        if "num_steps" in group:
            group["num_steps"] += 1
    return loss


def _noise(group: Group, number: int, device: torch.device) -> torch.Generator | None:
    if not group.get("stochastic_rounding", "num_steps" in group):
        return None
    return noise_of_step(group["num_steps"], group=number, device=device)
