"""Tensors of ranks, whole again, beside those of one process; every rank calls these together.

A strategy's parts are put together by their DTensors, a whole copy is taken as this rank has it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from lmtrain.parallel.all_ranks import on_all_ranks

Tensors = Mapping[str, Tensor]
InModelOrder = Callable[[Mapping[str, Any]], dict[str, Any]]


def whole(tensors: Tensors, in_model_order: InModelOrder) -> dict[str, Tensor]:
    """Return tensors by their parameters' names, whole, with the rows of the model, on the CPU."""
    return {name: _whole(one.detach()) for name, one in in_model_order(tensors).items()}


def differing(
    own: Tensors, expected: Tensors, allowed: Mapping[str, float], in_model_order: InModelOrder
) -> dict[str, tuple[float, tuple[int, ...]]]:
    """Return each tensor's largest difference over all ranks, and the ranks with entries beyond the allowed.

    A tensor of only one side differs by infinity.
    """
    mine = whole(own, in_model_order)
    beyond = {name: _difference(mine.get(name), one) for name, one in expected.items()}
    beyond |= {name: _difference(one, None) for name, one in mine.items() if name not in expected}
    names = [*beyond]
    largest = torch.stack([one.max() if one.numel() else torch.zeros(()) for one in beyond.values()])
    largest = _largest_of_ranks(largest.double().nan_to_num(nan=torch.inf, posinf=torch.inf))
    limits = [allowed.get(name, 0.0) for name in names]
    wrong = [name for name, one, limit in zip(names, largest.tolist(), limits, strict=True) if not one <= limit]
    holders = _holders(own, wrong, in_model_order)
    ranks = {
        name: _ranks_beyond(beyond[name], holders.get(name), limit)
        for name, limit in zip(names, limits, strict=True)
        if name in wrong
    }
    ranks = _joined(ranks)
    return {name: (one, ranks.get(name, ())) for name, one in zip(names, largest.tolist(), strict=True)}


def _whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.to("cpu", copy=True)


def _difference(found: Tensor | None, expected: Tensor | None) -> Tensor:
    if found is None or expected is None or found.shape != expected.shape:
        return torch.full((1,), torch.inf)
    return (found.float() - expected.float()).abs()


def _holders(own: Tensors, names: list[str], in_model_order: InModelOrder) -> dict[str, Tensor]:
    """Return each entry's rank."""
    filled = {name: torch.full_like(own[name].detach(), float(_rank())) for name in names if name in own}
    return whole(filled, in_model_order)


def _ranks_beyond(difference: Tensor, holders: Tensor | None, limit: float) -> tuple[int, ...]:
    is_beyond = ~(difference <= limit)
    if holders is None or holders.shape != difference.shape:
        return (_rank(),)
    return tuple(int(rank) for rank in holders[is_beyond].unique().tolist())


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _largest_of_ranks(values: Tensor) -> Tensor:
    if dist.is_initialized():
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values


def _joined(ranks: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Join the findings of all ranks."""
    found = on_all_ranks(ranks)
    return {name: tuple(sorted({rank for one in found for rank in one[name]})) for name in ranks}
