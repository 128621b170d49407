"""Measure how much of a step waits for other ranks, by a trace of one step now and then.

Communication behind computing costs nothing: the share counts this rank's time of communication without computing. It
holds both the links and the wait for late ranks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import lightning.pytorch as pl
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from typing_extensions import override

from lmtrain.accounting.options.ranges import require_count
from lmtrain.tracking.events import TRACED
from lmtrain.training.context import RunCallback, RunContext

STEPS_BEFORE_THE_FIRST: Final = 2  # of a process: they compile, and fill caches
COMPUTE_ON_CPU: Final = ("aten::", "## Call CompiledFxGraph", "CompiledFunction")

Interval = tuple[float, float]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """A kernel, operator or annotation of a trace, from and to a moment in seconds."""

    name: str
    span: Interval
    is_on_gpu: bool = False
    is_annotation: bool = False


def activities_of(trace: profile) -> list[Activity]:
    """Return a stopped trace's activities, without torch's own tree: it took 4.6 s for 85,000, this 0.2 (2.13)."""
    assert trace.profiler is not None
    assert trace.profiler.kineto_results is not None
    return [
        Activity(
            name=event.name(),
            span=(event.start_ns() / 1e9, event.end_ns() / 1e9),
            is_on_gpu=event.device_type() == DeviceType.CUDA,
            is_annotation=event.is_user_annotation(),
        )
        for event in trace.profiler.kineto_results.events()
    ]


class Communication(RunCallback):
    """Trace the third step of a process and every `every_steps` after it; book that share of computing as waiting.

    The share holds until the next trace; events have each traced step's seconds of own work and of waiting. Null never
    traces; a single rank has nobody to wait for. It belongs before the ledger.
    """

    def __init__(self, *, every_steps: int | None = 1000, context: RunContext | None = None) -> None:
        super().__init__(context)
        require_count("callbacks.communication.every_steps", every_steps)
        self._every_steps = every_steps
        self._is_off = every_steps is None
        self._num_steps = 0
        self._trace: profile | None = None
        self._share = 0.0
        self._computed = 0.0  # seconds behind the booked share

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._events, self._stopwatch = self.run.events, self.run.events.stopwatch
        self._is_off |= trainer.world_size == 1

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._is_off or self._every_steps is None or batch_idx % trainer.accumulate_grad_batches:
            return
        since_first = self._num_steps - STEPS_BEFORE_THE_FIRST
        is_due = since_first >= 0 and since_first % self._every_steps == 0
        if is_due and not self._events.is_profiled:
            with self._events.pause("trace"):
                self._trace = _start_trace(pl_module.device)

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._is_off:
            return
        self._num_steps += 1
        if self._trace is not None:
            with self._events.pause("trace"):
                activities = self._end_trace()
                self._share = exposed_share(activities)
            seconds = length_of(activities)
            own = seconds * (1 - self._share)
            self._events.mark(TRACED, step=trainer.global_step, own_seconds=own, waiting_seconds=seconds - own)
        if self._share:
            self._book()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if self._trace is not None:
            self._end_trace()

    def _end_trace(self) -> list[Activity]:
        trace, self._trace = self._trace, None
        assert trace is not None
        if ProfilerActivity.CUDA in trace.activities:
            torch.cuda.synchronize()
        trace.stop()
        return activities_of(trace)

    def _book(self) -> None:
        computed = self._stopwatch.seconds()["compute"]
        waited = self._share * (computed - self._computed)
        self._stopwatch.move(waited, source="compute", target="communication")
        self._computed = computed - waited


def _start_trace(device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        torch.cuda.synchronize()  # the remaining work belongs to the step before
        activities.append(ProfilerActivity.CUDA)
    trace = profile(activities=activities)
    trace.start()
    return trace


def exposed_share(activities: Sequence[Activity]) -> float:
    """Return a trace's share of communication without computing.

    On a GPU, kernels of NCCL against all others; on a CPU, gloo's work against operators.
    """
    waits: list[Interval] = []
    computes: list[Interval] = []
    kernels = [each for each in activities if each.is_on_gpu and not each.is_annotation]
    for each in kernels or activities:
        if "nccl" in each.name.lower() if kernels else each.name.startswith("gloo:"):
            waits.append(each.span)
        elif kernels or each.name.startswith(COMPUTE_ON_CPU):
            computes.append(each.span)
    seconds = length_of(activities)
    return (covered([*waits, *computes]) - covered(computes)) / seconds if seconds else 0.0


def covered(intervals: Iterable[Interval]) -> float:
    """Return how long at least one of the intervals lasts."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def length_of(activities: Sequence[Activity]) -> float:
    """Return the seconds from a trace's first activity to its last."""
    if not activities:
        return 0.0
    return max(each.span[1] for each in activities) - min(each.span[0] for each in activities)
