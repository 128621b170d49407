"""Cross-entropy at the models' widths and vocabularies, forward and backward: time and peak memory of every option."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Literal, cast, get_args
from unittest.mock import patch

import torch

from benchmarks.harness.hopper.cases import CASES, composed, meta_model
from benchmarks.harness.hopper.clock import seconds_of
from benchmarks.harness.hopper.rows import Bench, Row
from lmtrain.losses import chunked
from lmtrain.losses.base import TokenLoss
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.losses.liger import LigerCrossEntropy
from lmtrain.losses.linear import LinearCrossEntropy
from lmtrain.models.head import OutputHead

Way = Literal["eager", "compiled", "compiled whole"]  # as runs compile it, or all chunks as one graph
CHUNKS: Final = (4096, 8192, 16384)
LOSSES: Final[dict[str, tuple[Callable[[], TokenLoss], Way]]] = {  # made when measured: older torch refuses some
    "cross_entropy": (CrossEntropy, "eager"),
    "cross_entropy, compiled": (CrossEntropy, "compiled"),
    "chunked 2048": (partial(ChunkedCrossEntropy, chunk_tokens=2048), "eager"),
    **{
        f"chunked {chunk}{f', {way}' if way != 'eager' else ''}": (
            partial(ChunkedCrossEntropy, chunk_tokens=chunk),
            cast("Way", way),
        )
        for chunk in CHUNKS
        for way in get_args(Way)
    },
    "linear 4096": (LinearCrossEntropy, "eager"),
    "liger": (LigerCrossEntropy, "eager"),
}


def rows(bench: Bench) -> Iterator[Row]:
    """Measure a micro-batch of every model by every loss."""
    for case in CASES:
        config = composed(case, is_toy=bench.is_toy)
        head, batch = meta_model(config).output_head(), config["batch"]
        vocab_size, width = head.weight.shape
        num_tokens = batch["micro_batch_sequences"] * batch["context_tokens"]
        what = {"model": case.name, "num_tokens": num_tokens, "vocab_size": vocab_size, "width": width}
        for name in LOSSES:
            row = what | {"loss": name}
            if bench.wants("losses", name, **row):
                yield bench.measured(row, lambda: _measure(bench, name, what, head.soft_cap))  # noqa: B023


def _measure(bench: Bench, name: str, sizes: Row, soft_cap: float | None) -> Row:
    call = step(name, sizes, soft_cap, bench.device)
    call()
    peak = _peak_bytes(call) if bench.device.type == "cuda" else None
    return {"seconds": seconds_of(call, bench.device, rounds=3, calls=3), "peak_bytes": peak}


def step(name: str, sizes: Row, soft_cap: float | None, device: torch.device) -> Callable[[], Any]:
    """Return a call that makes the loss and both gradients."""
    make, way = LOSSES[name]
    loss = make()
    loss.require_fit(device_type=device.type, soft_cap=soft_cap)
    if way != "eager" and device.type == "cpu":
        raise RuntimeError("compiled on a GPU only here")
    weight = (torch.randn(sizes["vocab_size"], sizes["width"], device=device) * 0.02).requires_grad_()
    hidden = torch.randn(1, sizes["num_tokens"], sizes["width"], device=device, requires_grad=True)
    targets = torch.randint(sizes["vocab_size"], (1, sizes["num_tokens"]), device=device)
    score: Callable[..., Any] = loss
    if way == "compiled":
        score = loss.compiled(partial(torch.compile, dynamic=False))
    elif way == "compiled whole":
        score = torch.compile(loss, dynamic=False)
    copy = weight.detach().bfloat16() if device.type == "cuda" else None

    def call() -> Any:
        every_chunk = patch.object(chunked, "MIN_CHUNKS", 1)  # else no chunk is above an eighth of the tokens
        with torch.autocast(device.type, torch.bfloat16, enabled=copy is not None), every_chunk:
            total = score(OutputHead(weight, soft_cap=soft_cap, copy=copy), hidden, targets)
        return torch.autograd.grad(total.objective / sizes["num_tokens"], (hidden, weight))

    return call


def _peak_bytes(call: Callable[[], Any]) -> int:
    """Return what is allocated at most beside what is there already: logits, loss and gradients."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before
