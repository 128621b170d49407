"""GEMM rates of every matrix product that a model's training takes: forward, and both of the backward pass.

M tokens of a micro-batch (of a chunk of logits for the head), K inputs, N outputs of a layer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.harness.hopper.cases import CASES, composed, meta_model
from benchmarks.harness.hopper.clock import seconds_of
from benchmarks.harness.hopper.rows import Bench, Row, rate
from lmtrain.accounting.model.flops import matmul_flops
from lmtrain.run.schema.instantiate import instantiate

KINDS: Final = ("forward", "of inputs", "of weights")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@dataclass(frozen=True)
class Layer:
    """One linear layer of a model and how often it is there; `num_rows` tokens go through it at a time."""

    model: str
    name: str
    num_rows: int
    num_inputs: int
    num_outputs: int
    count: int


def layers(*, is_toy: bool) -> list[Layer]:
    """Return the layers of all models, those of one shape and name together, the head with the rows of a chunk."""
    found: list[Layer] = []
    for case in CASES:
        config = composed(case, is_toy=is_toy)
        model, batch = meta_model(config), config["batch"]
        num_tokens = batch["micro_batch_sequences"] * batch["context_tokens"]
        head = model.output_head().weight
        counts: dict[tuple[str, int, int], int] = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and module.weight is not head:
                key = (".".join(name.split(".")[2:]), module.in_features, module.out_features)
                counts[key] = counts.get(key, 0) + 1
        found += [Layer(case.name, name, num_tokens, k, n, count) for (name, k, n), count in counts.items()]
        chunk = instantiate(config["loss"], key="loss").logit_tokens(num_tokens)
        found.append(Layer(case.name, "head", chunk, head.shape[1], head.shape[0], 1))
    return found


def rows(bench: Bench) -> Iterator[Row]:
    """Measure each product of each shape once, in bf16 and in fp8."""
    for layer in layers(is_toy=bench.is_toy):
        for kind in KINDS:
            for dtype in ("bf16", "fp8"):
                what = vars(layer) | {"product": kind, "dtype": dtype}
                if bench.wants("products", layer.name, **what):
                    yield bench.measured(what, lambda: _measure(bench, layer, kind, dtype))  # noqa: B023  called at once


def _measure(bench: Bench, layer: Layer, kind: str, dtype: Any) -> Row:
    call = product(layer, kind, dtype, bench.device)
    flops = matmul_flops(layer.num_rows, layer.num_inputs, layer.num_outputs)
    return rate(flops, seconds_of(call, bench.device), bench.peak_flops(dtype))


def product(layer: Layer, kind: str, dtype: str, device: torch.device) -> Callable[[], Tensor]:
    """Return a call of the product as torch's linear layer makes it, or of its fp8 form, on random numbers."""
    x = torch.randn(layer.num_rows, layer.num_inputs, device=device, dtype=torch.bfloat16)
    weight = torch.randn(layer.num_outputs, layer.num_inputs, device=device, dtype=torch.bfloat16)
    gradient = torch.randn(layer.num_rows, layer.num_outputs, device=device, dtype=torch.bfloat16)
    left, right = {"forward": (x, weight.T), "of inputs": (gradient, weight), "of weights": (gradient.T, x)}[kind]
    if dtype == "bf16":
        return lambda: torch.mm(left, right)
    scale = torch.ones((), device=device)
    narrow = left.contiguous().to(E4M3 if kind == "forward" else E5M2)
    columns = right.T.contiguous().to(E4M3).T  # the kernel wants its second operand column by column
    options: dict[str, Any] = {"out_dtype": torch.bfloat16, "use_fast_accum": kind == "forward"}
    scaled: Any = torch._scaled_mm  # noqa: SLF001  torch's own, which fp8 linears call
    return lambda: scaled(narrow, columns, scale_a=scale, scale_b=scale, **options)
