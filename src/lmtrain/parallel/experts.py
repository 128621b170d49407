"""Mixtures of experts over several ranks: a balance loss of all their tokens.

The balance loss multiplies shares of tokens with mean probabilities. With the shares of all ranks it is the loss of one
process with the tokens of all: it is linear in the probabilities, whose gradients are averaged over ranks anyway.
E experts.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from lmtrain.models.base import LanguageModel
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.parallel.tensor_layers import Group, summed


@torch.library.custom_op("lmtrain::all_reduce_mean", mutates_args=())
def all_reduce_mean(x: Tensor, num_ranks: int, group: str) -> Tensor:
    """Average over the ranks of a group; an operator, whose result a recomputed block keeps: one message a layer."""
    return summed(x, Group(group, num_ranks, 0)) / num_ranks


@all_reduce_mean.register_fake
def _(x: Tensor, num_ranks: int, group: str) -> Tensor:
    del num_ranks, group
    return torch.empty_like(x)


def balance_over_ranks(model: LanguageModel, group: dist.ProcessGroup | None = None) -> LanguageModel:
    """Let the balance loss of each layer use the experts' shares of all tokens of a group; None is all ranks."""
    if dist.is_available() and dist.is_initialized():
        group = group or dist.group.WORLD
        assert group is not None
        for layer in model.modules():
            if isinstance(layer, MixtureOfExperts) and layer.experts.load_balance_weight and group.size() > 1:
                layer.average_shares = partial(all_reduce_mean, num_ranks=group.size(), group=group.group_name)
    return model
