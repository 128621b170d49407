"""Weights and streams in the format of the matrix products, next to fp32 master weights.

Autocast casts every weight again in each forward pass, and once more where it is recomputed. Here the fp32 masters stay
the model's parameters, for optimizers, DDP and checkpoints; each matrix has a copy in the products' format, made once
per optimizer step and used by every micro-batch, with the same numbers to the last bit. Tables that are only looked up,
norms and biases keep their format.

Autocast also leaves looked-up rows in fp32, and sums of fp32 and bf16 stay fp32, so the residual stream takes 4 bytes a
number from the first layer to the last. Rounded where it begins, it takes 2.
"""

import functools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lmtrain.models.base import LanguageModel
from lmtrain.models.head import OutputHead, kept_weight
from lmtrain.models.own_model import LogitsModel

Members = dict[str, Any]


def specialize(module: nn.Module, members: Callable[..., Members], *settings: Hashable) -> None:
    """Give a module, in place, a subclass of its class with `members(kind, *settings)` in it.

    Equal kinds and settings share one class, so that equal blocks compile once. Calls stack: the class of the first
    is the `kind` of the second.
    """
    module.__class__ = _subclass(type(module), members, settings)


@functools.cache
def _subclass(
    kind: type[nn.Module], members: Callable[..., Members], settings: tuple[Hashable, ...]
) -> type[nn.Module]:
    return type(kind.__name__, (kind,), members(kind, *settings))


def narrow_stream(model: LanguageModel, *, dtype: torch.dtype) -> LanguageModel:
    """Round every table's looked-up rows to `dtype`, in place; tables and their gradients stay as they are."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            specialize(module, _rounding, dtype)
    return model


def _rounding(kind: type[nn.Embedding], dtype: torch.dtype) -> Members:
    def forward(self: Any, tokens: Tensor) -> Tensor:
        found: Tensor = kind.forward(self, tokens)
        return found.to(dtype)

    return {"forward": forward}


def keep_copies(model: LanguageModel, *, dtype: torch.dtype) -> LanguageModel:
    """Let every matrix of the blocks and the head's product go through a copy in `dtype`, in place.

    A module of someone else's may use a matrix outside products: autocast decides there.
    """
    if isinstance(model, LogitsModel):
        return model
    for module in model.blocks.modules():
        matrices = {name: weight for name, weight in _own(module) if weight.ndim >= 2}
        if matrices and not isinstance(module, nn.Embedding):
            for name, weight in matrices.items():
                _add_copy(module, name, weight, dtype=dtype)
            specialize(module, _reading_copies, *matrices)
    _keep_head(model, dtype=dtype)
    return model


class KeptCopies:
    """The copies of a model, brought up to date when their masters have changed."""

    def __init__(self, model: nn.Module) -> None:
        """Find the copies of `keep_copies` in the model; nothing is fine too."""
        pairs = list(_pairs(model))
        self._masters = [master for master, _ in pairs]
        self._copies = [copy for _, copy in pairs]
        self._seen: list[tuple[int, int] | None] = [None] * len(pairs)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._copies)

    def expire(self) -> None:
        """Mark the masters as changed: torch's fused kernels leave no trace of a change (torch 2.13)."""
        self._seen = [
            None if master.requires_grad else seen for master, seen in zip(self._masters, self._seen, strict=True)
        ]

    def refresh(self) -> None:
        """Cast again if a master has been written to: by an optimizer, a loaded checkpoint, or averaged weights."""
        versions = [(master.data_ptr(), master._version) for master in self._masters]  # noqa: SLF001  nothing public
        stale = [index for index, version in enumerate(versions) if version != self._seen[index]]
        if stale:
            copies, masters = ([held[index] for index in stale] for held in (self._copies, self._masters))
            with torch.no_grad():
                torch._foreach_copy_(copies, masters)  # pyright: ignore[reportPrivateUsage]  # one launch
            self._seen = [*versions]


def _copy_name(name: str) -> str:
    return f"_{name}_copy"


def _add_copy(module: nn.Module, name: str, weight: Tensor, *, dtype: torch.dtype) -> None:
    """Keep it as a buffer on the module's device, never in a checkpoint."""
    module.register_buffer(_copy_name(name), weight.detach().to(dtype), persistent=False)


def _own(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return module.named_parameters(recurse=False)


def _pairs(model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    for module in model.modules():
        buffers = dict(module.named_buffers(recurse=False))
        for name, master in _own(module):
            if _copy_name(name) in buffers:
                yield master, buffers[_copy_name(name)]


def _reading_copies(_: type[nn.Module], *names: str) -> Members:
    """Return properties for reading the weights of these names as their copies."""
    return {name: property(_reader(name)) for name in names}


def _reader(name: str) -> Callable[[Any], Tensor]:
    copy_name = _copy_name(name)

    def read(module: Any) -> Tensor:
        return kept_weight(module._parameters[name], module._buffers[copy_name])  # noqa: SLF001

    return read


def _keep_head(model: LanguageModel, *, dtype: torch.dtype) -> None:
    """Give the head its own copy, also where it is tied to a table with lookups in fp32."""
    make_head = model.output_head
    weight = make_head().weight
    owner, name = next(
        (module, name) for module in model.modules() for name, parameter in _own(module) if parameter is weight
    )
    _add_copy(owner, name, weight, dtype=dtype)

    def output_head() -> OutputHead:
        return replace(make_head(), copy=owner.get_buffer(_copy_name(name)))

    model.output_head = output_head
