"""Schedule-free AdamW (https://arxiv.org/abs/2405.15682) by schedulefree: an average of all steps, no decay."""

from dataclasses import replace

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import FP32_BYTES, alike
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.missing_package import optimizer_class
from lmtrain.optim.parameter_groups import parameter_groups


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


def schedule_free_facts() -> OptimizerFacts:
    """Keep a moment and the weights before averaging."""
    return OptimizerFacts(
        state=replace(alike(2), step_bytes=FP32_BYTES),
        update="coordinates",
        never_zero={"beta1": "schedule_free without its average; 0.9 is usual"},
        averages_steps=True,
    )
