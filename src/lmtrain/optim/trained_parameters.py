"""A model's parameters by the counts behind memory and time of a step."""

import torch

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.models.base import LanguageModel
from lmtrain.optim.parameter_groups import sort_parameters


def trained_parameters(model: LanguageModel) -> TrainedParameters:
    """Count parameters as optimizers and sharding see them."""
    num_total = sum(parameter.numel() for parameter in model.parameters())
    of_blocks = [sum(parameter.numel() for parameter in block.parameters()) for block in model.blocks]
    kinds = sort_parameters(model)
    return TrainedParameters(
        num_total=num_total,
        num_hidden_matrix=sum(parameter.numel() for parameter in kinds.matrices),
        num_largest_block=max(of_blocks, default=0),
        num_largest_matrix=max((parameter.numel() for parameter in kinds.matrices), default=0),
        num_outside_blocks=num_total - sum(of_blocks),
        num_frozen=sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad),
        num_frozen_block_matrix=sum(
            parameter.numel()
            for parameter in model.blocks.parameters()
            if parameter.ndim >= 2 and not parameter.requires_grad
        ),
        num_vector=sum(parameter.numel() for parameter in kinds.vectors),
        num_edge=sum(
            _num_stacked(parameter) * sum(parameter.shape[-2:])
            for parameter in (*kinds.matrices, *kinds.embeddings, *kinds.head)
        ),
        num_long_edge=sum(_num_stacked(parameter) * max(parameter.shape[-2:]) for parameter in kinds.matrices),
    )


def _num_stacked(parameter: torch.Tensor) -> int:
    """Return how many matrices a tensor holds: those of experts are stacked."""
    return parameter.shape[:-2].numel()
