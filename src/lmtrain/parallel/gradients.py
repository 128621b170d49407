"""The global gradient norm and its clipping, over any mixture of meshes and plain tensors.

A norm is taken per device mesh and the squares are added, because one call over DTensors of several meshes fails
(torch 2.11 to 2.13).
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.nn.utils import get_total_norm


def global_norm(parameters: Iterable[Parameter]) -> Tensor:
    """Return the 2-norm of all gradients as a scalar tensor [], complete on every rank."""
    by_mesh: dict[object, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_mesh.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter.grad)
    norms = [_whole(get_total_norm(gradients)) for gradients in by_mesh.values()]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def scale_gradients(parameters: Iterable[Parameter], factor: Tensor) -> None:
    """Multiply every gradient in place by a scalar tensor [], without a host sync."""
    local = [_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    torch._foreach_mul_(local, factor.to(local[0].dtype))  # pyright: ignore[reportPrivateUsage]  # as in torch's clipping


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
