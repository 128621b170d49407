"""Optimizers of optional packages over our parameter groups: Lion, schedule-free AdamW, AdamW with 8-bit moments.

Lion: https://arxiv.org/abs/2302.06675; schedule-free: https://arxiv.org/abs/2405.15682; 8 bits:
https://arxiv.org/abs/2110.02861.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import FP32_BYTES, alike
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import has_compiler, optimizer_class
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


LION_FACTS: Final = OptimizerFacts(state=alike(1), update="coordinates", usual_rates=(1e-6, 0.003))


def schedule_free(
    model: nn.Module,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build AdamWScheduleFree over `model`, in training mode: evaluate and save between its eval() and train().

    beta1: the part of the average in the weights of the gradients; above 0.
    Its own warm-up stays off: the run's schedule has one.
    """
    schedule_free_class = optimizer_class("schedule_free", module="schedulefree", name="AdamWScheduleFree")
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    optimizer = schedule_free_class(groups, lr=lr, betas=(beta1, beta2), eps=eps)
    optimizer.train()
    optimizer.state.clear()  # train() leaves an empty entry a parameter; a sharded load takes it for filled
    return optimizer


SCHEDULE_FREE_FACTS: Final = OptimizerFacts(
    state=replace(alike(2), step_bytes=FP32_BYTES),
    update="coordinates",
    never_zero={"beta1": "schedule_free without its average; 0.9 is usual"},
    averages_steps=True,
)


def adamw_8bit(
    model: nn.Module,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build torchao's AdamW8bit over `model`; tensors of less than 4,096 values keep moments of their own format.

    It compiles its update for every shape of a parameter, in its first step.
    """
    adamw_class = optimizer_class("adamw_8bit", module="torchao.optim", name="AdamW8bit")
    if not has_compiler():
        msg = "optimizer=adamw_8bit compiles its update and needs a C++ compiler: install g++, or use optimizer=adamw."
        raise EnvironmentProblem(msg)
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    return adamw_class(groups, lr=lr, betas=(beta1, beta2), eps=eps)


# 256 values to an fp32 scale; vectors are too short to be worth it.
ADAMW_8BIT_FACTS: Final = OptimizerFacts(state=alike(2, value_bytes=1 + FP32_BYTES / 256), update="coordinates")
