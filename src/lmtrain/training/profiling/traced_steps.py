"""A profiler over some steps of an attempt: its wait, its start between two steps, and its end, also by a failure."""

import logging
from abc import ABC, abstractmethod
from typing import Any

import lightning.pytorch as pl
import torch
from torch.profiler import ProfilerActivity, profile
from typing_extensions import override

from lmtrain.training.context import RunContext
from lmtrain.training.loop.steps import is_step_end
from lmtrain.training.profiling.profiled_steps import ProfiledSteps

_LOG = logging.getLogger(__name__)


class TracedSteps(pl.Callback, ABC):
    """Trace the steps of a rank that records; a step goes from the end of the other callbacks to the next such end."""

    def __init__(self, steps: ProfiledSteps, *, context: RunContext) -> None:
        super().__init__()
        self._steps, self.context = steps, context
        self._left = steps.wait_steps  # before the trace begins, then before it ends
        self._trace: profile | None = None
        self._is_done = not steps.includes_rank(context.rank)

    @abstractmethod
    def make_trace(self, activities: list[ProfilerActivity]) -> profile:
        """Make the profiler, about to be started."""

    @abstractmethod
    def write(self, trace: profile, device: torch.device, *, step: int) -> None:
        """Write the trace of all steps up to this one."""

    @abstractmethod
    def stop(self, trace: profile) -> None:
        """Stop the profiler, written or cut short."""

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin_where_due(trainer, pl_module)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._is_done or not is_step_end(trainer, batch_idx):
            return
        self._left -= 1
        if self._trace is None:
            self._begin_where_due(trainer, pl_module)
        elif self._left > 0:
            self._trace.step()
        else:
            with self.context.events.pause("trace", step=trainer.global_step):
                self.write(self._trace, pl_module.device, step=trainer.global_step)
                self._end()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._is_done:
            _LOG.warning(
                "This attempt of rank %d ended before its trace did: there is no profile of it.", self.context.rank
            )
        self._end()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._end()

    def _begin_where_due(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._is_done or self._left > 0:
            return
        self._left = self._steps.num_steps
        with self.context.events.pause("trace", step=trainer.global_step):
            on_gpu = module.device.type == "cuda"
            if on_gpu:
                torch.cuda.synchronize()  # the remaining work belongs to the step before
            self.context.events.is_profiled = True
            self._trace = self.make_trace([ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])])
            self._trace.start()

    def _end(self) -> None:
        trace, self._trace, self._is_done = self._trace, None, True
        if trace is not None:
            self.context.events.is_profiled = False
            self.stop(trace)
