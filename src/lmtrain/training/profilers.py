"""torch's profiler over some steps of an attempt, waiting before them and ended by a failure too."""

import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import lightning.pytorch as pl
import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule
from typing_extensions import override

from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.run_folder import PROFILES
from lmtrain.training.context import RunContext
from lmtrain.training.intervals import is_step_end

_LOG = logging.getLogger(__name__)
NUM_OPERATORS: Final = 12
NAME_CHARACTERS: Final = 50
MOST_SNAPSHOT_EVENTS: Final = 1_000_000


class TracedSteps(pl.Callback, ABC):
    """Trace `active_steps` steps of an attempt, after `wait_steps` and `warm_up_steps`, on `ranks` (None: all).

    A step goes from the end of the other callbacks to the next such end.
    """

    def __init__(
        self,
        *,
        wait_steps: int,
        warm_up_steps: int = 0,
        active_steps: int = 1,
        ranks: Sequence[int] | None,
        num_ranks: int,
        context: RunContext,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.context, self._settings = context, settings
        self._wait_steps, self._warm_up_steps, self._active_steps = wait_steps, warm_up_steps, active_steps
        self._is_mine = ranks is None or context.rank in ranks
        self._trace: profile | None = None
        self._is_written = False
        last_step, num_steps = context.last_step, warm_up_steps + active_steps
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
    def write(self, trace: profile) -> None:
        """Write the trace of all active steps."""

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._is_mine:
            return
        self._trainer, self._device = trainer, pl_module.device
        on_gpu = self._device.type == "cuda"
        warm_up, active = self._warm_up_steps, self._active_steps
        with warnings.catch_warnings(action="ignore"):  # of no steps to warm up
            steps = schedule(wait=self._wait_steps, warmup=warm_up, active=active, repeat=1)
            self._trace = profile(
                activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
                schedule=steps,
                on_trace_ready=self._write,
                **self._settings,
            )
            self._trace.start()
        self._note(self._trace)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (trace := self._trace) is not None and is_step_end(trainer, batch_idx):
            trace.step()
            self._note(trace)
            if self._is_written:
                self._end()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._trace is not None:
            _LOG.warning("This attempt of rank %d ended before its trace did: it has no profile.", self.context.rank)
        self._end()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._end()

    def path(self, name: str) -> Path:
        """Return a file's place in the run's folder of profiles, which is made."""
        folder = self.context.folder / PROFILES
        folder.mkdir(exist_ok=True)
        return folder / name

    def write_operators(self, trace: profile, name: str, *, by: str) -> None:
        """Write torch's table of the operators and kernels with the most of an own column."""
        own = f"self_{'device' if self._device.type == 'cuda' else 'cpu'}_{by}"
        table = trace.key_averages().table(sort_by=own, row_limit=NUM_OPERATORS, max_name_column_width=NAME_CHARACTERS)
        head = f"Rank {self.context.rank}, {format_count(self._active_steps, 'step')} up to {self.step}\n"
        write_text(self.path(f"{name}_rank{self.context.rank}.txt"), head + table)

    @property
    def step(self) -> int:
        """Return the newest step."""
        return self._trainer.global_step

    def _note(self, trace: profile) -> None:
        self.context.events.is_profiled = trace.current_action is not ProfilerAction.NONE

    def _write(self, trace: profile) -> None:
        with self.context.events.pause("trace", step=self.step):
            self.write(trace)
        self._is_written = True

    def _end(self) -> None:
        trace, self._trace = self._trace, None
        self.context.events.is_profiled = False
        if trace is not None:
            trace.on_trace_ready = None  # one that was cut short is none
            trace.stop()


@final
class TorchTrace(TracedSteps):
    """Write profile/trace_rankR.json.gz and operators_rankR.txt after `active_steps` steps on each of `ranks`.

    The text is torch's table of the operators and kernels of the most own time. Before come `wait_steps` without a
    profiler and `warm_up_steps` thrown away, counted in each attempt. It belongs last.
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
        super().__init__(
            wait_steps=wait_steps,
            warm_up_steps=warm_up_steps,
            active_steps=active_steps,
            ranks=ranks,
            num_ranks=num_ranks,
            context=context,
            record_shapes=shapes,
            with_stack=stacks,
        )

    @override
    def write(self, trace: profile) -> None:
        trace.export_chrome_trace(str(self.path(f"trace_rank{self.context.rank}.json.gz")))
        self.write_operators(trace, "operators", by="time_total")


@final
class MemoryTrace(TracedSteps):
    """Write profile/memory_rankR.txt of the step after `wait_steps` steps of each attempt, on each of `ranks`.

    It is torch's table of the operators that allocate most. On a GPU profile/memory_rankR.pickle is the allocator's
    snapshot (https://pytorch.org/memory_viz shows it).
    """

    def __init__(
        self, *, wait_steps: int, ranks: Sequence[int] | None = None, num_ranks: int = 1, context: RunContext
    ) -> None:
        super().__init__(
            wait_steps=wait_steps,
            ranks=ranks,
            num_ranks=num_ranks,
            context=context,
            profile_memory=True,
        )

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.context.events.is_profiled and self._trace is not None and self._device.type == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=MOST_SNAPSHOT_EVENTS)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    @override
    def write(self, trace: profile) -> None:
        if self._device.type == "cuda":
            path = self.path(f"memory_rank{self.context.rank}.pickle")
            torch.cuda.memory._dump_snapshot(str(path))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        self.write_operators(trace, "memory", by="memory_usage")


def none() -> None:
    """Record nothing: the Trainer gets no further callback."""
