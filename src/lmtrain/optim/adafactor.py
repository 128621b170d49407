"""Adafactor (https://arxiv.org/abs/1804.04235), torch's own: a matrix's second moment from its rows and columns."""

import torch
from torch import nn

from lmtrain.optim.parameter_groups import parameter_groups


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
    """Build Adafactor over `model`; it keeps no momentum.

    lr: relative to the root mean square of each tensor, or to `relative_eps` where that is larger.
    beta2_decay: the second moment's decay is 1 - step ** beta2_decay.
    clip_threshold: largest root mean square of an update, before the learning rate.

    Raises:
        ConfigurationError: A multiplier of a group that there is not.
    """
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    return torch.optim.Adafactor(
        groups, lr=lr, beta2_decay=beta2_decay, eps=(None, relative_eps), d=clip_threshold, weight_decay=0.0
    )
