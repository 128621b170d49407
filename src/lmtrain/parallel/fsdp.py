"""Fully sharded data parallelism (FSDP2): each rank keeps a slice of every tensor and gathers one block at a time."""

import torch

from lmtrain.accounting.options.strategy import ModelSpread, gathered_shards
from lmtrain.parallel.mesh import over_mesh
from lmtrain.parallel.strategy import Parallelism


def fsdp(
    *,
    num_ranks: int,
    compute_dtype: torch.dtype,
    expert_size: int = 1,
    reshard_after_forward: bool = True,
    reduce_every_micro_step: bool = False,
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Shard weights, gradients and optimizer state over all ranks.

    `expert_size` neighbours have a share of each layer's experts each, and send one another the tokens for them.
    `reshard_after_forward` frees a block's gathered weights until its backward pass: less memory, one more gather.
    `reduce_every_micro_step` sends gradients at each micro-batch, in place of whole fp32 gradients on every rank
    between the first and the last of a step.
    """
    spread = fsdp_facts(
        expert_size=expert_size,
        reshard_after_forward=reshard_after_forward,
        reduce_every_micro_step=reduce_every_micro_step,
    )
    return over_mesh("fsdp", spread, num_ranks=num_ranks, compute_dtype=compute_dtype, timeout_seconds=timeout_seconds)


def fsdp_facts(
    *, expert_size: int = 1, reshard_after_forward: bool = True, reduce_every_micro_step: bool = False
) -> ModelSpread:
    """Shard over all ranks, and compute with weights cast in their gathering."""
    return gathered_shards(
        shards_over="all ranks",
        expert_ranks=expert_size,
        reshard_after_forward=reshard_after_forward,
        reduce_every_micro_step=reduce_every_micro_step,
    )
