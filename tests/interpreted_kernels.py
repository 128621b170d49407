"""Kernels of Triton on a CPU, by its interpreter: the modules that hold them are loaded anew for it."""

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@contextmanager
def interpreted(module: str) -> Generator[None]:
    """Run the kernels of a module in this block by Triton's interpreter."""
    kernels = importlib.import_module(module)
    try:
        with mock.patch.dict("os.environ", TRITON_INTERPRET="1"):
            importlib.reload(kernels)
            yield
    finally:
        importlib.reload(kernels)


def code_for_hopper(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> str:
    """Compile a kernel for a Hopper GPU and return its PTX; pointers and sizes are multiples of 16."""
    signature = types | dict.fromkeys(constants, "constexpr")
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(types.values())
        if kind.startswith("*") or kind == "i32"
    }
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
