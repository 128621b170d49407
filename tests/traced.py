"""Compiled models without the compiler's C++: traced, differentiated and run operation by operation."""

import pytest
import torch


def trace_only(patch: pytest.MonkeyPatch) -> None:
    """Let torch.compile stop before code is generated, which takes most of its time."""
    torch._dynamo.reset()
    compile_with = torch.compile
    patch.setattr(torch, "compile", lambda *args, **settings: compile_with(*args, **settings, backend="aot_eager"))
