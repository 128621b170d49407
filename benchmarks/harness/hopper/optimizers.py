"""AdamW over the models' parameters: bytes a second of one step, with and without clipping, fused and not."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn

from benchmarks.harness.hopper.cases import CASES, composed, meta_model
from benchmarks.harness.hopper.clock import seconds_of
from benchmarks.harness.hopper.rows import Bench, Row, rate
from lmtrain.optim.fused import can_fold, fold_into_step
from lmtrain.parallel.gradients import global_norm, scale_gradients

BYTES_PER_PARAMETER: Final = 28  # weight, gradient and two moments are read, all but the gradient written, in fp32
STEPS: Final = ("fused", "foreach", "norm, scale, fused", "norm, fused with the factor inside")


def rows(bench: Bench) -> Iterator[Row]:
    """Measure one step of every model; each is counted with the bytes of the step alone."""
    for case in CASES:
        shapes = [parameter.shape for parameter in meta_model(composed(case, is_toy=bench.is_toy)).parameters()]
        for how in STEPS:
            what = {"model": case.name, "num_parameters": sum(shape.numel() for shape in shapes), "step": how}
            if bench.wants("optimizer", how, **what):
                yield bench.measured(what, lambda: _measure(bench, shapes, how))  # noqa: B023


def _measure(bench: Bench, shapes: list[torch.Size], how: str) -> Row:
    call = step(shapes, how, bench.device)
    num_bytes = BYTES_PER_PARAMETER * sum(shape.numel() for shape in shapes)
    return rate(num_bytes, seconds_of(call, bench.device, rounds=3, calls=5), bench.peak_bytes_per_second)


def step(shapes: list[torch.Size], how: str, device: torch.device) -> Callable[[], Any]:
    """Return a call that takes a step on fixed random gradients."""
    parameters = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    is_fused = how != "foreach"
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=is_fused, foreach=not is_fused)

    def call() -> None:
        if how.startswith("norm"):
            divisor = (global_norm(parameters) + 1e-6).clamp(min=1.0)
            if how.endswith("inside") and can_fold(optimizer):
                fold_into_step(optimizer, divisor)
            else:
                scale_gradients(parameters, divisor.reciprocal())
        optimizer.step()

    return call
