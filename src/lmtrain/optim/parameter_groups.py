"""Sort a model's parameters by their roles: optimizers treat matrices, tables, head and vectors differently."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, cast

import torch
from torch import nn

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.models.base import LanguageModel

Group = dict[str, Any]


@dataclass(frozen=True)
class ParameterKinds:
    """Every trainable parameter exactly once; a shared tensor counts as its embedding table.

    matrices: 2-D weights inside the blocks, from one hidden state to another, and 3-D stacks of them (experts).
    embeddings: lookup tables, wherever they stand, and a head tied to one.
    head: 2-D weights outside the blocks other than lookup tables: the untied output projection.
    vectors: everything else: norm gains, biases, scalars.
    """

    matrices: tuple[nn.Parameter, ...]
    embeddings: tuple[nn.Parameter, ...]
    head: tuple[nn.Parameter, ...]
    vectors: tuple[nn.Parameter, ...]


KINDS = tuple(field.name for field in fields(ParameterKinds))


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: Mapping[str, float] | None = None,
) -> list[Group]:
    """Return one optimizer group for each of the model's kinds of parameter, with its learning rate and decay.

    Vectors (norms, biases, scalars) never decay; embeddings, and a head tied to one, do on request.
    """
    if lr < 0:
        raise ConfigurationError(f"optimizer.lr={lr:g} is negative. Did you mean 0, which trains nothing?")
    kinds = sort_parameters(model)
    decays = {"matrices": True, "head": True, "embeddings": decay_embeddings, "vectors": False}
    groups: list[Group] = [
        {"name": name, "params": list(getattr(kinds, name)), "weight_decay": weight_decay if decays[name] else 0.0}
        for name in decays
        if getattr(kinds, name)
    ]
    present = [group["name"] for group in groups]
    for name in lr_multipliers or {}:
        if name not in present:
            msg = f"optimizer.lr_multipliers.{name}: this model has the groups {', '.join(present)}."
            raise ConfigurationError(msg + suggest(name, present))
    return [{**group, "lr": lr * (lr_multipliers or {}).get(group["name"], 1.0)} for group in groups]


def require_each_once(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Check for every trainable parameter in exactly one group of the optimizer."""
    times = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and times[id(parameter)] != 1:
            where = f"in {times[id(parameter)]} groups" if times[id(parameter)] else "in no group"
            msg = f"optimizer={type(optimizer).__name__}: {name} is {where}; each trainable parameter belongs in one."
            raise ConfigurationError(msg)


def group_lines(optimizer: torch.optim.Optimizer) -> list[str]:
    """Say of each group how many parameters it has in how many tensors, its learning rate and its weight decay."""
    lines: list[str] = []
    for number, group in enumerate(optimizer.param_groups):
        parameters = group["params"]
        lines.append(
            f"{group.get('name', number)}: {sum(parameter.numel() for parameter in parameters):,} parameters in "
            f"{format_count(len(parameters), 'tensor')}, lr {float(group['lr']):g}, weight decay "
            f"{group.get('weight_decay', 0.0):g}"
        )
    return lines


def sort_parameters(model: nn.Module) -> ParameterKinds:
    """Sort the trainable parameters of `model`; its `blocks` attribute holds its hidden layers."""
    in_blocks = {id(parameter) for parameter in cast("nn.Module", model.blocks).parameters()}
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    kinds: dict[str, list[nn.Parameter]] = {"matrices": [], "embeddings": [], "head": [], "vectors": []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_bias = name.endswith("bias")  # those of experts are stacked
            kind = "vectors" if is_bias else _kind(parameter, id(parameter) in looked_up, id(parameter) in in_blocks)
            kinds[kind].append(parameter)
    return ParameterKinds(**{kind: tuple(parameters) for kind, parameters in kinds.items()})


def _kind(parameter: nn.Parameter, looked_up: bool, in_blocks: bool) -> str:  # noqa: FBT001
    if looked_up:
        return "embeddings"
    if parameter.ndim == 3 and in_blocks:
        return "matrices"
    if parameter.ndim != 2:
        return "vectors"
    return "matrices" if in_blocks else "head"


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
        tensors=_by_shape(model.parameters()),
        whole_in_groups=_by_shape(_whole_in_groups(model)),
    )


def _by_shape(parameters: Iterable[torch.Tensor]) -> dict[str, int]:
    return dict(Counter("x".join(map(str, parameter.shape)) for parameter in parameters))


def _whole_in_groups(model: nn.Module) -> Iterator[torch.Tensor]:
    """Give the matrices that layers name in `whole_in_groups`, of their own or of linear layers."""
    for module in model.modules():
        for name in getattr(module, "whole_in_groups", ()):
            if (part := attrgetter(name)(module)) is not None:
                yield part.weight if isinstance(part, nn.Linear) else part


def _num_stacked(parameter: torch.Tensor) -> int:
    """Return how many matrices a tensor holds: those of experts are stacked."""
    return parameter.shape[:-2].numel()
