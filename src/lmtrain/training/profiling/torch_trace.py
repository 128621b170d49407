"""Trace some steps by torch's profiler: a Chrome trace (https://ui.perfetto.dev opens it) and its summary."""

import logging
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from typing_extensions import override

from lmtrain.errors import ConfigurationError
from lmtrain.tracking.atomic_files import write_json
from lmtrain.training.context import RunContext
from lmtrain.training.loop.steps import is_step_end
from lmtrain.training.profiling.activities import activities_of
from lmtrain.training.profiling.profiled_steps import ProfiledSteps, profile_file
from lmtrain.training.profiling.trace_summary import summarize

_LOG = logging.getLogger(__name__)


class TorchTrace(pl.Callback):
    """Write profile/trace_rankR.json.gz and summary_rankR.json after `active_steps` steps on each of `ranks`.

    Before come `wait_steps` without a profiler and `warm_up_steps` thrown away, counted in each attempt. It belongs
    last: a step goes from the end of the other callbacks to the next such end.
    """

    def __init__(
        self,
        *,
        wait_steps: int,
        warm_up_steps: int,
        active_steps: int,
        ranks: Sequence[int] | None = None,
        shapes: bool = False,
        stacks: bool = False,
        num_ranks: int = 1,
        context: RunContext,
    ) -> None:
        super().__init__()
        for name, number in (("warm_up", warm_up_steps), ("active", active_steps)):
            if number < 1:
                raise ConfigurationError(f"profiler.{name}_steps={number} is below 1; nearest valid: 1.")
        self._steps = ProfiledSteps(
            wait_steps=wait_steps,
            num_steps=warm_up_steps + active_steps,
            ranks=ranks,
            num_ranks=num_ranks,
            last_step=context.last_step,
        )
        self._context = context
        self._warm_up_steps, self._active_steps = warm_up_steps, active_steps
        self._shapes, self._stacks = shapes, stacks
        self._left = wait_steps  # before the trace begins
        self._trace: profile | None = None
        self._is_done = not self._steps.includes_rank(context.rank)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin_where_due(trainer, pl_module)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._is_done or not is_step_end(trainer, batch_idx):
            return
        if self._trace is None:
            self._left -= 1
            self._begin_where_due(trainer, pl_module)
            return
        self._left -= 1
        if self._left > 0:
            self._trace.step()
            return
        with self._context.events.pause("trace", step=trainer.global_step):
            self._trace.step()  # writes
            self._end()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._is_done:
            _LOG.warning(
                "This attempt of rank %d ended before its trace did: there is no profile of it.", self._context.rank
            )
        self._end()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._end()

    def _begin_where_due(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._is_done or self._left > 0:
            return
        self._left = self._warm_up_steps + self._active_steps
        with self._context.events.pause("trace", step=trainer.global_step):
            on_gpu = module.device.type == "cuda"
            if on_gpu:
                torch.cuda.synchronize()  # the remaining work belongs to the step before
            self._context.events.is_profiled = True
            self._trace = profile(
                activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
                schedule=schedule(wait=0, warmup=self._warm_up_steps, active=self._active_steps, repeat=1),
                on_trace_ready=lambda trace: self._write(trace, last_step=trainer.global_step),
                record_shapes=self._shapes,
                with_stack=self._stacks,
            )
            self._trace.start()

    def _write(self, trace: profile, *, last_step: int) -> None:
        rank = self._context.rank
        path = profile_file(self._context.folder, f"trace_rank{rank}.json.gz")
        trace.export_chrome_trace(str(path))
        summary = summarize(activities_of(trace), rank=rank, last_step=last_step, num_steps=self._active_steps)
        write_json(path.with_name(f"summary_rank{rank}.json"), summary.to_json())

    def _end(self) -> None:
        trace, self._trace, self._is_done = self._trace, None, True
        if trace is not None:
            self._context.events.is_profiled = False
            trace.on_trace_ready = None  # one that was cut short is none
            trace.stop()
