"""AdamW with 8-bit moments (https://arxiv.org/abs/2110.02861) by torchao: two bytes of state a parameter."""

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import FP32_BYTES, alike
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import has_compiler, optimizer_class
from lmtrain.optim.parameter_groups import parameter_groups


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


def adamw_8bit_facts() -> OptimizerFacts:
    """Keep two moments of a byte, 256 values to an fp32 scale; vectors are too short to be worth it."""
    return OptimizerFacts(state=alike(2, value_bytes=1 + FP32_BYTES / 256), update="coordinates")
