"""oneDNN's fp32 products on AMD processors with AVX-512, which MKL leaves unused there: twice MKL's FLOP/s in training.

torch (2.13) hands fp32 products to oneDNN only with leave to round their inputs to bf16. oneDNN takes that leave where
matrix units (AMX) make it worth while, and multiplies in fp32 elsewhere: a product is tried before it is relied on.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Final, Literal

import torch

from lmtrain.precision.cpu_features import cpu_flags, cpu_name

MatmulPrecision = Literal["highest", "high", "medium"]
ONEDNN: Final = "medium"  # of torch.set_float32_matmul_precision
TRIED_SIDES: Final = (64, 512)


def is_mkl_slow() -> bool:
    """Return whether this processor has instructions that oneDNN takes and MKL leaves alone."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return has_both and "AMD" in cpu_name() and "avx512f" in cpu_flags()


@cache
def cpu_matmul_precision() -> MatmulPrecision:
    """Return torch's word for the fastest products on this processor that are still of fp32."""
    return ONEDNN if is_mkl_slow() and keeps_fp32(ONEDNN) else "highest"


def keeps_fp32(word: MatmulPrecision) -> bool:
    """Return whether products under torch's word are those of fp32 here, in each order of their matrices in memory."""
    with multiplying(word):
        return all(_keeps_fp32(side) for side in TRIED_SIDES)


@contextmanager
def multiplying(word: MatmulPrecision) -> Generator[None]:
    """Multiply under torch's word within."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(word)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _keeps_fp32(side: int) -> bool:
    """Multiply 1 + 2^-20, which neither bf16 nor TF32 holds, by one."""
    x, one = torch.full((side, side), 1 + 2**-20), torch.eye(side)
    return all(torch.equal(product, x) for product in (x @ one, x @ one.T, x.T @ one, one @ x, one @ x.T))
