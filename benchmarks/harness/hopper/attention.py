"""Attention at the models' shapes, forward and backward, by every kernel that the device has.

T context tokens, H heads, Hkv key and value heads, K head width.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.harness.hopper.cases import CASES, composed, meta_model
from benchmarks.harness.hopper.clock import seconds_of
from benchmarks.harness.hopper.rows import Bench, Row, rate
from lmtrain.models.attention.auto import Auto
from lmtrain.models.attention.base import Attention, KernelTarget
from lmtrain.models.attention.blocked import Blocked
from lmtrain.models.attention.flash import Flash
from lmtrain.models.attention.flex import Flex
from lmtrain.models.attention.sdpa import SDPA

OPTIONS: Final[dict[str, tuple[Attention, SDPBackend | None]]] = {
    "auto": (Auto(), None),
    "sdpa": (SDPA(), None),
    "sdpa cuDNN": (SDPA(), SDPBackend.CUDNN_ATTENTION),
    "sdpa flash": (SDPA(), SDPBackend.FLASH_ATTENTION),
    "sdpa memory-efficient": (SDPA(), SDPBackend.EFFICIENT_ATTENTION),
    "flash 2": (Flash(version=2), None),
    "flash 3": (Flash(version=3), None),
    "flash 4": (Flash(version=4), None),
    "flex": (Flex(), None),
    "blocked": (Blocked(), None),
}


@dataclass(frozen=True)
class Shape:
    """The attention of some layers of a model."""

    model: str
    num_sequences: int
    num_tokens: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    window_tokens: int | None
    count: int = 1

    @property
    def num_pairs(self) -> int:
        """Count the pairs of tokens of which one sees the other, over all sequences and heads."""
        seen = min(self.window_tokens or self.num_tokens, self.num_tokens)
        return self.num_sequences * self.num_heads * (self.num_tokens * seen - seen * (seen - 1) // 2)


def shapes(*, is_toy: bool) -> list[Shape]:
    """Return the different shapes of the models' layers, each with how many layers have it."""
    found: Counter[Shape] = Counter()
    for case in CASES:
        config = composed(case, is_toy=is_toy)
        model, batch = meta_model(config), config["batch"]
        num_kv_heads = config["model"].get("num_kv_heads")
        for layer in model.shape().attention:
            window = layer.window_tokens
            shape = Shape(
                case.name,
                batch["micro_batch_sequences"],
                batch["context_tokens"],
                layer.num_heads,
                num_kv_heads or layer.num_heads,
                layer.head_width,
                window if window and window < batch["context_tokens"] else None,
            )
            found[shape] += 1
    return [replace(shape, count=count) for shape, count in found.items()]


def rows(bench: Bench) -> Iterator[Row]:
    """Measure forward, and forward with backward, of every option."""
    for shape in shapes(is_toy=bench.is_toy):
        for name in OPTIONS:
            what = vars(shape) | {"kernel": name}
            if bench.wants("attention", name, **what):
                yield bench.measured(what, lambda: _measure(bench, shape, name))  # noqa: B023


def _measure(bench: Bench, shape: Shape, name: str) -> Row:
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    forward, both = calls(shape, name, bench.device, dtype)
    peak = bench.peak_flops("bf16")
    flops = 4 * shape.head_width * shape.num_pairs  # two products; what flash recomputes backward is not counted
    one = seconds_of(forward, bench.device, calls=5)
    backward = max(seconds_of(both, bench.device, calls=5) - one, 1e-9)
    return {"forward": rate(flops, one, peak), "backward": rate(2 * flops, backward, peak)}


def calls(
    shape: Shape, name: str, device: torch.device, dtype: torch.dtype
) -> tuple[Callable[[], Tensor], Callable[[], Any]]:
    """Return a forward pass, and one with its backward pass, on random numbers."""
    option, backend = OPTIONS[name]
    kernel = option.fitted(KernelTarget(device_type=device.type, dtype=dtype, head_width=shape.head_width))
    sizes = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
    q, k, v = (
        torch.randn(
            shape.num_sequences, heads, shape.num_tokens, shape.head_width,
            device=device, dtype=dtype, requires_grad=True,
        )
        for heads in sizes
    )  # fmt: skip
    windows = (shape.window_tokens,)
    seen = kernel.prepare(None, num_tokens=shape.num_tokens, windows=windows, device=device)
    of_result = torch.randn_like(q)

    def mix() -> Tensor:
        with _only(backend):
            return kernel(q, k, v, window_tokens=shape.window_tokens, documents=seen)

    return mix, lambda: torch.autograd.grad(mix(), (q, k, v), of_result)


def _only(backend: SDPBackend | None) -> AbstractContextManager[Any]:
    return nullcontext() if backend is None else sdpa_kernel(backend)
