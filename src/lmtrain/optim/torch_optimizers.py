"""Optimizers of torch over our parameter groups: gradient descent, momentum, RMSProp, AdaGrad, Adafactor.

RMSProp: https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf; AdaGrad:
https://jmlr.org/papers/v12/duchi11a.html; Adafactor: https://arxiv.org/abs/1804.04235.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import OptimizerState, alike
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.optim.parameter_groups import parameter_groups
from lmtrain.optim.sharded import local


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


SGD_FACTS: Final = OptimizerFacts(
    state=alike(0),
    decay="gradient",
    without_rule=(
        "its steps grow with the gradients, whose size changes with width, of scalars otherwise than of tables"
    ),
)
MOMENTUM_FACTS: Final = replace(
    SGD_FACTS, state=alike(1), never_zero={"momentum": "optimizer=momentum without one; nearest: optimizer=sgd"}
)


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


RMSPROP_FACTS: Final = OptimizerFacts(state=alike(1), decay="gradient", update="coordinates")


def adagrad(
    model: nn.Module,
    *,
    lr: float,
    eps: float = 1e-10,
    initial_accumulator: float = 0.0,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build AdaGrad over `model`.

    initial_accumulator: the initial sum of squares; above 0 it calms the first steps.
    weight_decay: added to the gradient, and so divided like it.
    """
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    # Step counts are on the host, next to the weights of a CPU, where only the fused step does not read them; it takes
    # 0.4 of the other's time there. Not every torch since 2.11 has it for GPUs, and none for sharded parameters.
    parameters = [parameter for group in groups for parameter in group["params"]]
    fused = all(parameter.device.type == "cpu" and local(parameter) is parameter for parameter in parameters)
    return torch.optim.Adagrad(groups, lr=lr, eps=eps, initial_accumulator_value=initial_accumulator, fused=fused)


ADAGRAD_FACTS: Final = OptimizerFacts(
    state=alike(1),
    decay="gradient",
    update="coordinates",
    ranges={"initial_accumulator": {"at_least": 0.0, "usual": "0"}},
)


def adafactor(
    model: nn.Module,
    *,
    lr: float,
    beta2_decay: float = -0.8,
    relative_eps: float = 1e-3,
    clip_threshold: float = 1.0,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build Adafactor over `model`; it keeps no momentum, and its step waits for two norms of every tensor (2.13).

    lr: relative to the root mean square of each tensor, or to a larger `relative_eps`.
    beta2_decay: the second moment's decay is 1 - step ** beta2_decay.
    clip_threshold: largest root mean square of an update, before the learning rate.
    """
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    return torch.optim.Adafactor(
        groups, lr=lr, beta2_decay=beta2_decay, eps=(None, relative_eps), d=clip_threshold, weight_decay=0.0
    )


# takes_shards: the squares of partial sums in torch's class are in place (2.11 to 2.13).
ADAFACTOR_FACTS: Final = OptimizerFacts(
    state=OptimizerState(per_matrix_value=0, per_table_value=0, per_vector_value=1, per_edge=1),
    takes_shards=False,
    without_rule="its steps are shares of a tensor's own size, which width changes already",
    ranges={
        "beta2_decay": {"at_most": 0.0, "usual": "-0.8"},
        "clip_threshold": {"at_least": 1.0, "usual": "1"},
        "relative_eps": {"at_least": 0.0, "usual": "0.001"},
    },
)
