"""RMSProp (https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf), torch's own."""

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import alike
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.optim.parameter_groups import parameter_groups


def rmsprop(
    model: nn.Module,
    *,
    lr: float,
    beta2: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build RMSProp over `model`: gradients divided by the root of their running mean square, without momentum.

    weight_decay: added to the gradient, and so divided like it.
    """
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    return torch.optim.RMSprop(groups, lr=lr, alpha=beta2, eps=eps)


def rmsprop_facts() -> OptimizerFacts:
    """Keep the running mean of squared gradients."""
    return OptimizerFacts(state=alike(1), decay="gradient", update="coordinates")
