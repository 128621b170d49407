"""A profiler over some steps of an attempt: its wait, its start between two steps, and its end, also by a failure."""

import logging
import sys
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

import lightning.pytorch as pl
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from typing_extensions import override

from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.errors import ConfigurationError
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import write_json
from lmtrain.training.context import RunContext
from lmtrain.training.intervals import is_step_end
from lmtrain.training.trace_summary import FOLDER, MEMORY_KINDS, activities_of, summarize

_LOG = logging.getLogger(__name__)


MOST_POINTS: Final = 400
MOST_SNAPSHOT_EVENTS: Final = 1_000_000


def profile_file(folder: Path, name: str) -> Path:
    """Return a file's place in a run's folder of profiles, which is made."""
    (folder / FOLDER).mkdir(exist_ok=True)
    return folder / FOLDER / name


class TracedSteps(pl.Callback, ABC):
    """Trace `num_steps` steps of an attempt, after `wait_steps`, on `ranks` (None: all).

    A step goes from the end of the other callbacks to the next such end.
    """

    def __init__(
        self, *, wait_steps: int, num_steps: int, ranks: Sequence[int] | None, num_ranks: int, context: RunContext
    ) -> None:
        super().__init__()
        self.context, self._num_steps = context, num_steps
        self._left = wait_steps  # before the trace begins, then before it ends
        self._trace: profile | None = None
        self._is_done = ranks is not None and context.rank not in ranks
        last_step = context.last_step
        most = sys.maxsize if last_step.seconds is not None else last_step.steps - num_steps
        if most < 0:
            raise ConfigurationError(f"profiler must record at most {last_step.steps} steps, got {num_steps}.")
        usual = f"{min(max(0, wait_steps), most)}"
        require_number("profiler.wait_steps", wait_steps, at_least=0, at_most=most, usual=usual)
        for rank in ranks if ranks is not None else ():
            require_number("profiler.ranks", rank, at_least=0, below=num_ranks, usual="null, which is all")
        if ranks is not None and not ranks:
            raise ConfigurationError("profiler.ranks must name a rank, got []. Did you mean profiler=none?")

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
            _LOG.warning("This attempt of rank %d ended before its trace did: it has no profile.", self.context.rank)
        self._end()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._end()

    def _begin_where_due(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._is_done or self._left > 0:
            return
        self._left = self._num_steps
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
            require_count(f"profiler.{name}_steps", number)
        num_steps = warm_up_steps + active_steps
        super().__init__(wait_steps=wait_steps, num_steps=num_steps, ranks=ranks, num_ranks=num_ranks, context=context)
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


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline:
    """Bytes by kind at moments of a step, in seconds from its start; `peak` holds those of the fullest moment."""

    rank: int
    step: int
    device: str
    seconds: tuple[float, ...]
    bytes_of: dict[str, tuple[int, ...]]
    peak: dict[str, int]


@final
class MemoryTrace(TracedSteps):
    """Write profile/memory_rankR.json of the step after `wait_steps` steps of each attempt, on each of `ranks`.

    On a GPU also profile/memory_rankR.pickle, the allocator's snapshot (https://pytorch.org/memory_viz shows it).
    """

    def __init__(
        self, *, wait_steps: int, ranks: Sequence[int] | None = None, num_ranks: int = 1, context: RunContext
    ) -> None:
        super().__init__(wait_steps=wait_steps, num_steps=1, ranks=ranks, num_ranks=num_ranks, context=context)

    @override
    def make_trace(self, activities: list[ProfilerActivity]) -> profile:
        if ProfilerActivity.CUDA in activities:
            torch.cuda.memory._record_memory_history(max_entries=MOST_SNAPSHOT_EVENTS)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return profile(
            activities=activities,
            profile_memory=True,
            record_shapes=True,
            with_stack=True,  # Python's calls of modules and optimizers tell the kinds
        )

    @override
    def write(self, trace: profile, device: torch.device, *, step: int) -> None:
        path = profile_file(self.context.folder, f"memory_rank{self.context.rank}.json")
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.memory._dump_snapshot(str(path.with_suffix(".pickle")))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        trace.stop()
        timeline = timeline_of(trace, device, rank=self.context.rank, step=step)
        write_json(path, asdict(timeline))

    @override
    def stop(self, trace: profile) -> None:
        if ProfilerActivity.CUDA in trace.activities:
            torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if trace.profiler is not None and trace.profiler.kineto_results is None:  # cut short
            trace.stop()


def timeline_of(trace: profile, device: torch.device, *, rank: int, step: int) -> MemoryTimeline:
    """Return a stopped trace's memory on a device, at most 400 moments: the fullest of each part of the step."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated without a successor that sorts by kind (2.13)
        file = Path(folder) / "timeline.json"
        trace.export_memory_timeline(str(file), device=str(device))  # pyright: ignore[reportDeprecated]
        microseconds, rows = foreign_json.read(file)
    moments = [(max(0, time), [int(value) for value in row[1:]]) for time, row in zip(microseconds, rows, strict=True)]
    return _timeline(moments, device=str(device), rank=rank, step=step)


def _timeline(moments: list[tuple[int, list[int]]], *, device: str, rank: int, step: int) -> MemoryTimeline:
    inside = [moment for moment in moments if moment[0] > 0] or moments  # those before the step have no time
    began = inside[0][0] if inside else 0
    edges = [round(index * len(inside) / MOST_POINTS) for index in range(MOST_POINTS + 1)]
    parts = [inside[start:end] for start, end in pairwise(edges) if end > start]
    kept = [max(part, key=lambda moment: sum(moment[1])) for part in parts]
    fullest = max(kept, key=lambda moment: sum(moment[1]), default=(0, [0] * len(MEMORY_KINDS)))
    return MemoryTimeline(
        rank=rank,
        step=step,
        device=device,
        seconds=tuple((time - began) / 1e6 for time, _ in kept),
        bytes_of={kind: tuple(row[index] for _, row in kept) for index, kind in enumerate(MEMORY_KINDS)},
        peak=dict(zip(MEMORY_KINDS, fullest[1], strict=True)),
    )


def none() -> None:
    """Record nothing: the Trainer gets no further callback."""
