"""Products of bf16 matrices on a processor without instructions for them, where torch's own take 15 times as long."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.library import _scoped_library


@contextmanager
def multiplied_in_fp32() -> Generator[None]:
    """Multiply bf16 matrices in fp32 within and round once, as those instructions do; other products are torch's own.

    A product of two bf16 numbers is exact in fp32, so that sums alone are rounded on the way, in torch's kernels too.
    """
    with _scoped_library("aten", "IMPL") as library:
        library.impl("mm", _product, "CPU", allow_override=True)
        yield


def _product(left: Tensor, right: Tensor) -> Tensor:
    found = left.new_empty(left.shape[0], right.shape[1], dtype=torch.promote_types(left.dtype, torch.float32))
    torch.mm(left.to(found.dtype), right.to(found.dtype), out=found)
    return found.to(left.dtype)
