"""AdamW (https://arxiv.org/abs/1711.05101) with weight decay on matrices only, fused where the device can."""

from typing import Any

import torch
from torch import nn

from lmtrain.optim.fused import can_fuse
from lmtrain.optim.parameter_groups import sort_parameters


def adamw(
    model: nn.Module,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
) -> torch.optim.Optimizer:
    """Build AdamW over `model`: one group each for matrices, head, embeddings and vectors, all at `lr`.

    Vectors (norms, biases, scalars) never decay; embeddings, and a head tied to one, do on request.
    """
    kinds = sort_parameters(model)
    decays = {"matrices": True, "head": True, "embeddings": decay_embeddings, "vectors": False}
    groups: list[dict[str, Any]] = [
        {"name": name, "params": list(getattr(kinds, name)), "weight_decay": weight_decay if decays[name] else 0.0}
        for name in decays
        if getattr(kinds, name)
    ]
    fused = can_fuse(parameter for group in groups for parameter in group["params"])
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=0.0, fused=fused)
