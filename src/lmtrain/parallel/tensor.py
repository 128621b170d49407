"""Tensor parallelism: the ranks of a group compute each product together, a share of the features each.

With sequence parallelism between the products (arXiv 2205.05198) and a loss over shards of the vocabulary. Groups may
have copies: FSDP2 averages gradients over all ranks of equal parts.
"""

import torch

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.parallel.mesh import over_mesh
from lmtrain.parallel.strategy import Parallelism


def tensor(
    *,
    num_ranks: int,
    compute_dtype: torch.dtype,
    tensor_size: int,
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Cut every matrix over `tensor_size` neighbouring ranks; each such group has a copy, and reads the same tokens."""
    spread = tensor_facts(tensor_size=tensor_size)
    return over_mesh(
        "tensor", spread, num_ranks=num_ranks, compute_dtype=compute_dtype, timeout_seconds=timeout_seconds
    )


def tensor_facts(*, tensor_size: int = 8) -> ModelSpread:
    """Cut over neighbours in joint products, and compute with weights cast in their gathering."""
    return ModelSpread(tensor_ranks=tensor_size, casts_parameters=True)
