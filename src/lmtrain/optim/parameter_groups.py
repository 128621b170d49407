"""Sort a model's parameters by what they do: optimizers treat matrices, tables, head and vectors differently."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn


@dataclass(frozen=True)
class ParameterKinds:
    """Every trainable parameter exactly once; a tensor that is shared counts as its embedding table.

    matrices: 2-D weights inside the blocks, by which one hidden state makes another, and 3-D stacks of them (experts).
    embeddings: tables that are looked up, wherever they stand, and a head tied to one.
    head: 2-D weights outside the blocks that are not looked up: the untied output projection.
    vectors: everything else: norm gains, biases, scalars.
    """

    matrices: tuple[nn.Parameter, ...]
    embeddings: tuple[nn.Parameter, ...]
    head: tuple[nn.Parameter, ...]
    vectors: tuple[nn.Parameter, ...]


def sort_parameters(model: nn.Module) -> ParameterKinds:
    """Sort the trainable parameters of `model`, whose `blocks` attribute holds its hidden layers."""
    in_blocks = {id(parameter) for parameter in cast("nn.Module", model.blocks).parameters()}
    looked_up = {id(parameter) for parameter in _table_parameters(model)}
    kinds: dict[str, list[nn.Parameter]] = {"matrices": [], "embeddings": [], "head": [], "vectors": []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            kinds[_kind(parameter, id(parameter) in looked_up, id(parameter) in in_blocks)].append(parameter)
    return ParameterKinds(**{kind: tuple(parameters) for kind, parameters in kinds.items()})


def _table_parameters(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            yield module.weight


def _kind(parameter: nn.Parameter, looked_up: bool, in_blocks: bool) -> str:  # noqa: FBT001
    if looked_up:
        return "embeddings"
    if parameter.ndim == 3 and in_blocks:
        return "matrices"
    if parameter.ndim != 2:
        return "vectors"
    return "matrices" if in_blocks else "head"
