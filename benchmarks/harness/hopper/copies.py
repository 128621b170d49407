"""Bandwidth of the device's memory, and of pinned host memory to and from it."""

from collections.abc import Iterator
from typing import Final

import torch

from benchmarks.harness.hopper.clock import seconds_of
from benchmarks.harness.hopper.rows import Bench, Row, rate

PLACES: Final = {
    "device to device": ("here", "here"),
    "host to device": ("host", "here"),
    "device to host": ("here", "host"),
}


def rows(bench: Bench) -> Iterator[Row]:
    """Measure a copy each way; within the device what is read and what is written both count."""
    for name in PLACES:
        if bench.wants("copies", name, copy=name):
            yield bench.measured({"copy": name}, lambda: _measure(bench, name))  # noqa: B023


def _measure(bench: Bench, name: str) -> Row:
    num_bytes = 2**22 if bench.is_toy else 2**30
    source, target = (_tensor(bench, place, num_bytes) for place in PLACES[name])
    seconds = seconds_of(lambda: target.copy_(source, non_blocking=True), bench.device)
    inside = name == "device to device"
    return rate(num_bytes * (1 + inside), seconds, bench.peak_bytes_per_second if inside else None)


def _tensor(bench: Bench, place: str, num_bytes: int) -> torch.Tensor:
    if place == "here":
        return torch.randint(256, (num_bytes,), dtype=torch.uint8, device=bench.device)
    if bench.device.type == "cpu":
        raise RuntimeError("no GPU to copy to or from")
    return torch.randint(256, (num_bytes,), dtype=torch.uint8).pin_memory()
