"""Context parallelism: the ranks of a group share each sequence, FSDP2 shards the weights over all ranks.

Every rank has a slice of the sequence. Within attention it has all of it for a share of the heads, where the group
divides them (parallel/ulysses.py), else the keys and values of all tokens (parallel/gathered_keys.py).
"""

import torch

from lmtrain.accounting.options.strategy import ModelSpread, gathered_shards
from lmtrain.parallel.mesh import over_mesh
from lmtrain.parallel.strategy import Parallelism


def context(
    *,
    num_ranks: int,
    compute_dtype: torch.dtype,
    context_size: int,
    reshard_after_forward: bool = True,
    reduce_every_micro_step: bool = False,
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Cut every sequence over `context_size` neighbours, and shard weights, gradients and state over all ranks.

    `reshard_after_forward`, `reduce_every_micro_step`: as in fsdp.
    """
    spread = context_facts(
        context_size=context_size,
        reshard_after_forward=reshard_after_forward,
        reduce_every_micro_step=reduce_every_micro_step,
    )
    return over_mesh(
        "context", spread, num_ranks=num_ranks, compute_dtype=compute_dtype, timeout_seconds=timeout_seconds
    )


def context_facts(
    *, context_size: int = 8, reshard_after_forward: bool = True, reduce_every_micro_step: bool = False
) -> ModelSpread:
    """Cut sequences over neighbours, and shard over all ranks."""
    return gathered_shards(
        shards_over="all ranks",
        context_ranks=context_size,
        reshard_after_forward=reshard_after_forward,
        reduce_every_micro_step=reduce_every_micro_step,
    )
