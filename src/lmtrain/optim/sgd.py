"""Gradient descent, plain and with momentum, by torch.optim.SGD."""

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import alike
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.optim.parameter_groups import parameter_groups


def sgd(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build gradient descent over `model`: no state at all.

    weight_decay: added to the gradient, so the learning rate scales it.
    """
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    return torch.optim.SGD(groups, lr=lr)


def momentum(
    model: nn.Module,
    *,
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build gradient descent with a velocity: a sum of past gradients, fading by `momentum` a step.

    nesterov: look ahead along the velocity.
    weight_decay: added to the gradient, so the learning rate scales it.
    """
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)


def sgd_facts() -> OptimizerFacts:
    """Keep nothing."""
    return OptimizerFacts(
        state=alike(0),
        decay="gradient",
        without_rule=(
            "its steps grow with the gradients, whose size changes with width, of scalars otherwise than of tables"
        ),
    )


def momentum_facts() -> OptimizerFacts:
    """Keep the velocity."""
    return OptimizerFacts(
        state=alike(1),
        decay="gradient",
        without_rule=(
            "its steps grow with the gradients, whose size changes with width, of scalars otherwise than of tables"
        ),
        never_zero={"momentum": "optimizer=momentum without one; nearest: optimizer=sgd"},
    )
