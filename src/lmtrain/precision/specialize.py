"""Change how one module of a built model computes, under its own name: parameters, buffers and type name stay.

A wrapper would change the names in checkpoints, and a hook would end a compiled graph.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any

from torch import nn

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
