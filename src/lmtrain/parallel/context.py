"""Context parallelism: the ranks of a group share each sequence, FSDP2 shards the weights over all ranks.

DeepSpeed Ulysses, arXiv 2309.14509: every rank has a slice of the sequence, and all of it within attention, for a share
of the heads. Attention kernels, documents and windows are those of one process.
"""

from functools import partial

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lmtrain.accounting.options.strategy import ModelSpread, gathered_shards
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.fsdp import FullyShardedStrategy, shard_blocks
from lmtrain.parallel.strategy import Parallelism
from lmtrain.parallel.ulysses import HeadExchange, require_shares, share_heads


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
    spread.require_ranks(num_ranks)
    strategy = FullyShardedStrategy(
        num_ranks=num_ranks, timeout_seconds=timeout_seconds, reduce_every_micro_step=reduce_every_micro_step
    )
    return Parallelism(
        name="context",
        strategy=strategy,
        parallelize=partial(share_sequences, spread=spread, compute_dtype=compute_dtype),
        spread=spread,
        require=partial(require_shares, num_ranks=context_size),
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


def share_sequences(
    model: LanguageModel, mesh: DeviceMesh | None, *, spread: ModelSpread, compute_dtype: torch.dtype
) -> LanguageModel:
    """Give each rank of a group its slice and its heads, then shard each block over all ranks."""
    assert mesh is not None
    shape = (mesh.size() // spread.context_ranks, spread.context_ranks)
    groups = init_device_mesh(mesh.device_type, shape, mesh_dim_names=("copies", "context"))
    share_heads(model, HeadExchange(groups["context"]))
    return shard_blocks(model, mesh, compute_dtype=compute_dtype, reshard_after_forward=spread.reshard_after_forward)
