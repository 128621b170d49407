"""Kernels of the compiler that are counted and not made: a C++ compiler would take most of a compilation.

The graphs, products, allocations and order of launches are the compiler's own. Results are ones.
"""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import fresh_cache

LAUNCHES = Counter[str]()


@contextmanager
def counted_kernels() -> Generator[None]:
    """Compile without C++ in this context, with no graph compiled before and none left to later ones."""
    taken_on_trust = inductor.patch("cpp.vec_isa_ok", True)  # the processor's vectors: torch would build a trial first
    with pytest.MonkeyPatch.context() as patch, fresh_cache(), taken_on_trust:
        patch.setattr(AsyncCompile, "cpp_pybinding", _counted_kernel)
        torch.compiler.reset()
        yield
        torch.compiler.reset()


def _counted_kernel(_: AsyncCompile, kinds: list[str], source: str) -> Callable[..., None]:
    """Return a kernel for its source's arguments that is counted, and writes ones where it may write."""

    def kernel(*arguments: Any) -> None:
        LAUNCHES["kernel"] += 1
        for kind, argument in zip(kinds, arguments, strict=True):
            if isinstance(argument, torch.Tensor) and not kind.startswith("const"):
                argument.fill_(1)

    return kernel
