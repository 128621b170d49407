"""FSDP2 within groups of ranks, and copies across them: weights are gathered over the fast links of a node alone.

arXiv 2304.11277 section 3.2.2. Gradients are scattered within a group and then averaged over the copies of each shard.
"""

import torch

from lmtrain.accounting.options.strategy import ModelSpread, gathered_shards
from lmtrain.parallel.mesh import over_mesh
from lmtrain.parallel.strategy import Parallelism


def hsdp(
    *,
    num_ranks: int,
    compute_dtype: torch.dtype,
    shard_size: int,
    reshard_after_forward: bool = True,
    reduce_every_micro_step: bool = False,
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Shard weights, gradients and optimizer state over `shard_size` neighbouring ranks; each such group has a copy.

    `reduce_every_micro_step` scatters gradients within a group at each micro-batch, as `fsdp` does; copies are averaged
    once a step.
    """
    spread = hsdp_facts(
        shard_size=shard_size,
        reshard_after_forward=reshard_after_forward,
        reduce_every_micro_step=reduce_every_micro_step,
    )
    return over_mesh("hsdp", spread, num_ranks=num_ranks, compute_dtype=compute_dtype, timeout_seconds=timeout_seconds)


def hsdp_facts(
    *, shard_size: int = 8, reshard_after_forward: bool = True, reduce_every_micro_step: bool = False
) -> ModelSpread:
    """Shard over neighbours, and compute with weights cast in their gathering."""
    return gathered_shards(
        shards_over=shard_size,
        word_of_shards="shard_size",
        reshard_after_forward=reshard_after_forward,
        reduce_every_micro_step=reduce_every_micro_step,
    )
