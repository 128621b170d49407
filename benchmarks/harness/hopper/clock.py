"""Seconds of a call: between two events on a GPU's stream, CPU seconds of this process otherwise."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def seconds_of(call: Callable[[], Any], device: torch.device, *, rounds: int = 5, calls: int = 10) -> float:
    """Return the median of a few rounds, after one round that does not count."""
    return statistics.median([_round(call, device, calls) for _ in range(rounds + 1)][1:])


def _round(call: Callable[[], Any], device: torch.device, calls: int) -> float:
    if device.type == "cpu":
        began = time.process_time()
        call()
        return time.process_time() - began
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / calls
