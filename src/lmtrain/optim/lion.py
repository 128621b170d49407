"""Lion (https://arxiv.org/abs/2302.06675) by lion_pytorch: every weight moves by the learning rate, up or down."""

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import alike
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.missing_package import optimizer_class
from lmtrain.optim.parameter_groups import parameter_groups


def lion(
    model: nn.Module,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build Lion over `model`; one momentum a weight is all its state."""
    lion_class = optimizer_class("lion", module="lion_pytorch", name="Lion")
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    return lion_class(groups, lr=lr, betas=(beta1, beta2))


def lion_facts() -> OptimizerFacts:
    """Keep a momentum."""
    return OptimizerFacts(state=alike(1), update="coordinates", usual_rates=(1e-6, 0.003))
