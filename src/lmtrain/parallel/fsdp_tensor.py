"""Tensor parallelism within a node and FSDP2 across: each rank's part of a matrix is sharded over its counterparts.

arXiv 2104.04473 puts tensor groups where links are fastest, for they meet four times a layer and micro-step.
"""

import torch

from lmtrain.accounting.options.strategy import ModelSpread, gathered_shards
from lmtrain.parallel.mesh import over_mesh
from lmtrain.parallel.strategy import Parallelism


def fsdp_tensor(
    *,
    num_ranks: int,
    compute_dtype: torch.dtype,
    tensor_size: int,
    shard_size: int | None = None,
    reshard_after_forward: bool = True,
    reduce_every_micro_step: bool = False,
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Cut every matrix over `tensor_size` neighbours, and shard the parts over `shard_size` groups (None: over all).

    `reduce_every_micro_step` scatters gradients over the groups at each micro-batch, as `fsdp` does.
    """
    spread = fsdp_tensor_facts(
        tensor_size=tensor_size,
        shard_size=shard_size,
        reshard_after_forward=reshard_after_forward,
        reduce_every_micro_step=reduce_every_micro_step,
    )
    return over_mesh(
        "fsdp_tensor", spread, num_ranks=num_ranks, compute_dtype=compute_dtype, timeout_seconds=timeout_seconds
    )


def fsdp_tensor_facts(
    *,
    tensor_size: int = 8,
    shard_size: int | None = None,
    reshard_after_forward: bool = True,
    reduce_every_micro_step: bool = False,
) -> ModelSpread:
    """Cut over neighbours in joint products, and shard each part over the ranks of the same part."""
    return gathered_shards(
        tensor_ranks=tensor_size,
        shards_over=shard_size or "all ranks",
        word_of_shards="shard_size",
        reshard_after_forward=reshard_after_forward,
        reduce_every_micro_step=reduce_every_micro_step,
    )
