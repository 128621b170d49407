"""Measure how much of a step waits for other ranks, and for what, by a trace of one step now and then.

Communication behind computing costs nothing: the share counts this rank's time of communication without computing. It
holds both the links and the wait for late ranks. Waits for the exchanges of experts' rows are apart, and those for the
other stages of a pipeline.
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
from lmtrain.tracking.stopwatch import Kind
from lmtrain.training.context import RunCallback, RunContext

STEPS_BEFORE_THE_FIRST: Final = 2  # of a process: they compile, and fill caches
COMPUTE_ON_CPU: Final = ("aten::", "## Call CompiledFxGraph", "CompiledFunction")

# Messages of an expert group, as parallel/experts.py marks them, and between stages by their kernels' names.
EXPERTS: Final = "lmtrain::experts"
BETWEEN_STAGES: Final = (
    "gloo:send",
    "gloo:recv",
    "gloo:broadcast",
    "ncclDevKernel_SendRecv",
    "ncclDevKernel_Broadcast",
)

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
    """Trace the third step of a process and every `every_steps` after it; book these shares of computing as waiting.

    They hold until the next trace; events have each traced step's seconds of own work and of waiting. Null never
    traces; a single rank has nobody to wait for. It belongs before the ledger.
    """

    def __init__(self, *, every_steps: int | None = 1000, context: RunContext | None = None) -> None:
        super().__init__(context)
        require_count("callbacks.communication.every_steps", every_steps)
        self._every_steps = every_steps
        self._num_steps = 0
        self._trace: profile | None = None
        self._shares: dict[Kind, float] = {}
        self._computed = 0.0  # seconds behind the booked shares

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._events, self._stopwatch = self.run.events, self.run.events.stopwatch
        self._every_steps = None if trainer.world_size == 1 else self._every_steps

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._every_steps is None or batch_idx % trainer.accumulate_grad_batches:
            return
        since_first = self._num_steps - STEPS_BEFORE_THE_FIRST
        is_due = since_first >= 0 and since_first % self._every_steps == 0
        if is_due and not self._events.is_profiled:
            with self._events.pause("trace"):
                self._trace = _start_trace(pl_module.device)

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._every_steps is None:
            return
        self._num_steps += 1
        if self._trace is not None:
            with self._events.pause("trace"):
                activities = self._end_trace()
                model = getattr(pl_module, "language_model", None)
                self._shares = exposed_shares(activities, has_stages=getattr(model, "whole_step", None) is not None)
            seconds = length_of(activities)
            waiting = seconds * sum(self._shares.values())
            self._events.mark(TRACED, step=trainer.global_step, own_seconds=seconds - waiting, waiting_seconds=waiting)
        if self._shares:
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
        since = self._stopwatch.seconds()["compute"] - self._computed
        for kind, share in self._shares.items():
            self._stopwatch.move(share * since, source="compute", target=kind)
        self._computed = self._stopwatch.seconds()["compute"]


def _start_trace(device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        torch.cuda.synchronize()  # the remaining work belongs to the step before
        activities.append(ProfilerActivity.CUDA)
    trace = profile(activities=activities)
    trace.start()
    return trace


def exposed_shares(activities: Sequence[Activity], *, has_stages: bool = False) -> dict[Kind, float]:
    """Return a trace's shares of communication without computing, by the kind of waiting.

    On a GPU, kernels of NCCL against all others; on a CPU, gloo's work against operators. Where several kinds go on at
    once, experts come first, then other stages.
    """
    kernels = [each for each in activities if each.is_on_gpu and not each.is_annotation]

    def is_message(activity: Activity) -> bool:
        return "nccl" in activity.name.lower() if kernels else activity.name.startswith("gloo:")

    marked = [each.span for each in activities if each.is_annotation and each.name == EXPERTS]
    messages = [each for each in kernels or activities if is_message(each)]
    waits: dict[Kind, list[Interval]] = {"expert_wait": [], "pipeline_bubble": [], "communication": []}
    for each in messages:
        if any(start <= each.span[0] <= end for start, end in marked):
            waits["expert_wait"].append(each.span)
        elif has_stages and each.name.startswith(BETWEEN_STAGES):
            waits["pipeline_bubble"].append(each.span)
        else:
            waits["communication"].append(each.span)
    busy = [
        each.span
        for each in kernels or activities
        if not is_message(each) and (kernels or each.name.startswith(COMPUTE_ON_CPU))
    ]
    seconds, shares = length_of(activities), dict[Kind, float]()
    for kind, spans in waits.items():
        before = covered(busy)
        busy = [*busy, *spans]
        if waited := covered(busy) - before:
            shares[kind] = waited / seconds
    return shares


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
