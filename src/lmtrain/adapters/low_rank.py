"""Low-rank changes of linear layers, trained next to frozen weights: LoRA, arXiv 2106.09685 section 4.

A layer keeps its class, weight and name, and gets a child `adapter`. Matrices fused in one layer have separate
factors, as if they stood apart: the layout of PEFT. B batch, T tokens, I inputs, O outputs, P fused matrices, R rank.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.models.base import LanguageModel
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.precision.cast_weights import Members, specialize

ADAPTER: Final = "adapter"  # a layer's child, and the word in its parameters' names
Change = Callable[[Tensor], Tensor]


@final
class LowRank(nn.Module):
    """The change of one layer: scale * up(down(x)) for each of its matrices, P of them side by side.

    `down` holds the factors [R, I] of all matrices one below another, `ups` the factors [O, R].
    """

    def __init__(self, layer: nn.Linear, *, widths: Sequence[int], rank: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.rank, self.scale, self.dropout = rank, scale, dropout
        place: dict[str, Any] = {"bias": False, "device": "meta", "dtype": layer.weight.dtype}
        self.down = nn.Linear(layer.in_features, rank * len(widths), **place)
        self.ups = nn.ModuleList(nn.Linear(rank, width, **place) for width in widths)
        self.to_empty(device=layer.weight.device)

    @property
    def whole_in_groups(self) -> list[str]:
        """Return the layers that every rank of a tensor group has whole: all of them."""
        return ["down", *(f"ups.{number}" for number in range(len(self.ups)))]

    def forward(self, x: Float[Tensor, "B T I"]) -> Float[Tensor, "B T O"]:
        """Return the change of the layer's output: [B, T, I] -> [B, T, O]."""
        return self._change(x, slice(None), [slice(None)] * len(self.ups))

    def of_part(self, *, rows: Int[Tensor, " o"] | None = None, columns: slice = slice(None)) -> Change:
        """Return the change of a part of the layer: of these rows, in rising order, by these columns of the input."""
        first, of_ups = 0, list[Any]()
        for up in self.ups:
            behind = first + cast(nn.Linear, up).out_features
            of_ups.append(slice(None) if rows is None else rows[(rows >= first) & (rows < behind)] - first)
            first = behind
        return partial(self._change, columns=columns, rows=of_ups)

    def _change(self, x: Float[Tensor, "B T i"], columns: slice, rows: Sequence[Any]) -> Float[Tensor, "B T o"]:
        down = self.down.weight[:, columns]
        hidden = F.linear(F.dropout(x, self.dropout, self.training), down).split(self.rank, dim=-1)
        ups = [cast(nn.Linear, up).weight[own] for up, own in zip(self.ups, rows, strict=True)]
        changes = [F.linear(part, up) for part, up in zip(hidden, ups, strict=True)]
        return self.scale * (changes[0] if len(changes) == 1 else torch.cat(changes, dim=-1))

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Fill `down` uniformly within 1 / sqrt(I), `ups` with zeros: no change at first."""
        bound = 1 / math.sqrt(self.down.in_features)
        drawn = torch.empty(self.down.weight.shape, device=generator.device)
        self.down.weight.copy_(drawn.uniform_(-bound, bound, generator=generator))
        for up in self.ups:
            cast(nn.Linear, up).weight.zero_()

    def factors(self) -> list[tuple[Tensor, Tensor]]:
        """Return the factors of each matrix, as they are trained: P of ([R, I], [O, R])."""
        downs = self.down.weight.split(self.rank)
        return [(down, cast(nn.Linear, up).weight) for down, up in zip(downs, self.ups, strict=True)]

    def change(self) -> Float[Tensor, "O I"]:
        """Return the change of the weight, in fp32: [O, I]."""
        return self.scale * torch.cat([up.float() @ down.float() for down, up in self.factors()])


def layers_of(model: LanguageModel) -> dict[str, nn.Linear]:
    """Return the linear layers of the blocks by name; without experts and their router."""
    inside = [module for block in model.blocks for module in block.modules()]
    experts = {id(part) for module in inside if isinstance(module, MixtureOfExperts) for part in module.modules()}
    adapters = {id(part) for _, adapter in adapters_of(model) for part in adapter.modules()}
    found = {id(module) for module in inside if isinstance(module, nn.Linear)} - experts - adapters
    return {name: module for name, module in model.named_modules() if id(module) in found}  # pyright: ignore[reportReturnType]


def adapters_of(model: nn.Module) -> Iterator[tuple[str, LowRank]]:
    """Give each adapter with the name of its layer."""
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            yield name.removesuffix(f".{ADAPTER}"), module


def attach_to(layer: nn.Linear, adapter: LowRank) -> None:
    """Let a layer add its adapter's change to its output."""
    layer.add_module(ADAPTER, adapter)
    specialize(layer, _with_adapter)


def widths_of(model: nn.Module, name: str) -> tuple[int, ...]:
    """Return the outputs of each matrix fused in a layer, of all together where it is one."""
    owner, _, last = name.rpartition(".")
    fused: Mapping[str, tuple[int, ...]] = getattr(model.get_submodule(owner), "fused_rows", {})
    layer = cast(nn.Linear, model.get_submodule(name))
    return tuple(fused.get(f"{last}.weight", (layer.out_features,)))


@torch.no_grad()
def merge(model: LanguageModel) -> LanguageModel:
    """Add every adapter's change to its layer's weight, take the adapters off, and let all weights train."""
    for name, adapter in list(adapters_of(model)):
        layer = cast(nn.Linear, model.get_submodule(name))
        layer.weight.copy_(layer.weight.float() + adapter.change())
        take_off(layer)
    for parameter in model.parameters():
        parameter.requires_grad = True
    return model


def take_off(layer: nn.Module) -> None:
    """Make an adapted layer plain again."""
    delattr(layer, ADAPTER)
    layer.__class__ = type(layer).__mro__[1]


def is_of_adapter(name: str) -> bool:
    """Return whether a parameter's name is of an adapter."""
    return ADAPTER in name.split(".")


def _with_adapter(kind: type[nn.Module]) -> Members:
    def forward(self: Any, x: Tensor) -> Tensor:
        return kind.forward(self, x) + self.adapter(x)

    return {"forward": forward}
