"""Fill parameters in place from one generator, with the same numbers on any device."""

import torch
from torch import Tensor, nn


def fill_normal(parameter: Tensor, *, std: float, generator: torch.Generator) -> None:
    """Fill with normal numbers, drawn in fp32 where the generator lives and then copied; zeros where std is 0."""
    if std == 0.0:
        fill_constant(parameter, 0.0)
        return
    drawn = torch.empty(parameter.shape, device=generator.device).normal_(0.0, std, generator=generator)
    with torch.no_grad():
        parameter.copy_(drawn)


def fill_constant(parameter: Tensor, value: float) -> None:
    """Fill with one value."""
    with torch.no_grad():
        parameter.fill_(value)


def fill_linear(linear: nn.Linear, *, std: float, generator: torch.Generator) -> None:
    """Fill the weight with normal numbers, or zeros where std is 0, and the bias with zeros."""
    fill_normal(linear.weight, std=std, generator=generator)
    if linear.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]  torch types it as never None
        fill_constant(linear.bias, 0.0)
