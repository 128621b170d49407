"""Adafactor (https://arxiv.org/abs/1804.04235): a matrix's second moment from its rows and columns.

torch's own: its step waits for two norms of every tensor (2.13).
"""

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.accounting.options.optimizer import OptimizerFacts
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


def adafactor_facts() -> OptimizerFacts:
    """Keep a row and a column of a matrix's second moment, and all of a vector's.

    torch's class needs whole parameters: its squares of partial sums are in place (2.11 to 2.13).
    """
    return OptimizerFacts(
        state=OptimizerState(per_matrix_value=0, per_table_value=0, per_vector_value=1, per_edge=1),
        takes_shards=False,
        without_rule="its steps are shares of a tensor's own size, which width changes already",
        ranges={
            "beta2_decay": {"at_most": 0.0, "usual": "-0.8"},
            "clip_threshold": {"at_least": 1.0, "usual": "1"},
            "relative_eps": {"at_least": 0.0, "usual": "0.001"},
        },
    )
