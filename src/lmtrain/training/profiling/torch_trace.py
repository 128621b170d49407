"""Trace some steps by torch's profiler: a Chrome trace (https://ui.perfetto.dev opens it) and its summary."""

from collections.abc import Sequence
from typing import final

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from typing_extensions import override

from lmtrain.errors import ConfigurationError
from lmtrain.tracking.atomic_files import write_json
from lmtrain.training.context import RunContext
from lmtrain.training.profiling.activities import activities_of
from lmtrain.training.profiling.profiled_steps import ProfiledSteps, profile_file
from lmtrain.training.profiling.trace_summary import summarize
from lmtrain.training.profiling.traced_steps import TracedSteps


@final
class TorchTrace(TracedSteps):
    """Write profile/trace_rankR.json.gz and summary_rankR.json after `active_steps` steps on each of `ranks`.

    Before come `wait_steps` without a profiler and `warm_up_steps` thrown away, counted in each attempt. It belongs
    last.
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
        for name, number in (("warm_up", warm_up_steps), ("active", active_steps)):
            if number < 1:
                raise ConfigurationError(f"profiler.{name}_steps={number} is below 1; nearest valid: 1.")
        steps = ProfiledSteps(
            wait_steps=wait_steps,
            num_steps=warm_up_steps + active_steps,
            ranks=ranks,
            num_ranks=num_ranks,
            last_step=context.last_step,
        )
        super().__init__(steps, context=context)
        self._warm_up_steps, self._active_steps = warm_up_steps, active_steps
        self._shapes, self._stacks = shapes, stacks

    @override
    def make_trace(self, activities: list[ProfilerActivity]) -> profile:
        return profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=self._warm_up_steps, active=self._active_steps, repeat=1),
            record_shapes=self._shapes,
            with_stack=self._stacks,
        )

    @override
    def write(self, trace: profile, device: torch.device, *, step: int) -> None:
        trace.on_trace_ready = lambda ready: self._export(ready, last_step=step)
        trace.step()

    @override
    def stop(self, trace: profile) -> None:
        trace.on_trace_ready = None  # one that was cut short is none
        trace.stop()

    def _export(self, trace: profile, *, last_step: int) -> None:
        rank = self.context.rank
        path = profile_file(self.context.folder, f"trace_rank{rank}.json.gz")
        trace.export_chrome_trace(str(path))
        summary = summarize(activities_of(trace), rank=rank, last_step=last_step, num_steps=self._active_steps)
        write_json(path.with_name(f"summary_rank{rank}.json"), summary.to_json())
