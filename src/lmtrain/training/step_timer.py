"""Time the optimizer steps of a run under way: as the Trainer takes them and, in turns with it, part by part.

Everything is timed with an idle device at both ends. The weights change as they would in training: use a throw-away
run.
"""

import contextlib
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.autograd.profiler_util import FunctionEvent
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile
from typing_extensions import override

from lmtrain.accounting.observed.bench import StepParts
from lmtrain.training.intervals import is_step_end
from lmtrain.training.module import CausalLMModule
from lmtrain.training.process_settings import give_back_freed_memory

ROUNDS: Final = 6
WARM_UP_STEPS: Final = 5
NAMES: Final = ("data", "forward", "backward", "optimizer")


class StepTimer(pl.Callback):
    """Let the Trainer warm up, time its steps and their parts in turns for about `seconds`, and stop the run.

    It belongs last in the list. A long step makes fewer of all: one to warm up, one by the Trainer, one by hand at
    least. Then `sync_steps` more are watched for host syncs, one where they would take long, none where it is 0.
    Everything is None or empty until the run has ended.
    """

    def __init__(self, *, seconds: float, sync_steps: int = 10) -> None:
        super().__init__()
        self.step_seconds: list[float] = []  # the mean of each round
        self.num_steps = 0
        self.started_at = self.first_step_seconds = 0.0
        self.peak_bytes = 0
        self.syncs_per_step: float | None = None
        self._seconds, self._sync_steps = seconds, sync_steps
        self._timed: dict[str, list[float]] = {name: [] for name in NAMES}
        self._next = self._end_first_step
        self._began = self._warm_at = 0.0
        self._num = 0  # steps since `_began`
        self._syncs = HostSyncs()

    @property
    def parts(self) -> StepParts | None:
        """Return the medians over the rounds, None where no part was timed."""
        seconds = {name: median(timed) for name, timed in self._timed.items() if timed}
        return StepParts(whole=median(self.step_seconds), **seconds) if seconds else None

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, CausalLMModule)
        self.started_at = time.perf_counter()
        self._trainer, self._device = trainer, pl_module.device
        self._hand = HandStep(trainer, pl_module).measure
        forget_peak(self._device)
        self._start()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_step_end(trainer, batch_idx):
            self._num += 1
            self._next()

    def _start(self) -> None:
        wait_for(self._device)
        self._began, self._num = time.perf_counter(), 0

    def _end_first_step(self) -> None:
        wait_for(self._device)
        self.first_step_seconds = time.perf_counter() - self._began
        self._start()
        self._next = self._warm_up

    def _warm_up(self) -> None:
        if self._num >= WARM_UP_STEPS - 1 or time.perf_counter() - self._began >= self._seconds / 4:
            self._start()
            self._warm_at = self._began
            self._next = self._time_round

    def _time_round(self) -> None:
        if time.perf_counter() - self._began < self._seconds / ROUNDS / 2:
            return
        wait_for(self._device)
        self.step_seconds.append((time.perf_counter() - self._began) / self._num)
        self.num_steps += self._num
        self._time_parts()
        if len(self.step_seconds) >= ROUNDS or time.perf_counter() - self._warm_at >= self._seconds:
            self._end_rounds()
        self._start()

    def _time_parts(self) -> None:
        """Take steps by hand for as long as the Trainer just did, at least one."""
        until = time.perf_counter() + self._seconds / ROUNDS / 2
        rows = [self._hand()]
        while time.perf_counter() < until:
            rows.append(self._hand())
        for name, timed in self._timed.items():
            timed.append(median(row[name] for row in rows))

    def _end_rounds(self) -> None:
        self.peak_bytes = peak_bytes(self._device)
        if self._sync_steps == 0:
            self._trainer.should_stop = True
            return
        if self._sync_steps * self.step_seconds[-1] > self._seconds:
            self._sync_steps = 1
        self._syncs.start()
        self._next = self._count_syncs

    def _count_syncs(self) -> None:
        if self._num == self._sync_steps:
            self.syncs_per_step = self._syncs.stop() / self._num
            self._trainer.should_stop = True


class HandStep:
    """One optimizer step at a time, part by part, on its own batches."""

    def __init__(self, trainer: pl.Trainer, module: CausalLMModule) -> None:
        self._trainer, self._module = trainer, module
        self._batches: Iterator[Any] = iter(())
        self._loss: torch.Tensor | None = None
        self._batch: Any = None

    def measure(self) -> dict[str, float]:
        """Return the seconds of each part of one step: of one micro-step, times the micro-steps, and the optimizer."""
        micro_steps = self._trainer.accumulate_grad_batches
        if self._batch is None:
            self._batches = iter(self._trainer.datamodule.train_dataloader())  # pyright: ignore[reportAttributeAccessIssue]
            self._next()
        seconds = {
            "data": self._time(self._next),
            "forward": self._time(self._forward),
            "backward": self._time(self._backward),
        }
        whole = {name: taken * micro_steps for name, taken in seconds.items()}
        return whole | {"optimizer": self._time(self._optimizer)}

    def _time(self, action: Callable[[], Any]) -> float:
        wait_for(self._module.device)
        began = time.perf_counter()
        action()
        wait_for(self._module.device)
        return time.perf_counter() - began

    def _next(self) -> None:
        self._batch = self._trainer.strategy.batch_to_device(next(self._batches))

    def _forward(self) -> None:
        with self._trainer.precision_plugin.forward_context():
            total, self._loss = self._module.step.share_of(self._batch)
        self._module.step_metrics.add_micro_step(total)

    def _backward(self) -> None:
        assert self._loss is not None
        self._loss.backward()
        self._loss = None

    def _optimizer(self) -> None:
        number = self._trainer.global_step
        self._module.step.prepare(number, self._module.total_steps)
        self._module.step.optimizer.step()
        self._module.step.settle(number)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all its work."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def forget_peak(device: torch.device) -> None:
    """Reset the peak of memory, if the system allows it: a process may have needed more before it trained."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    give_back_freed_memory()
    with contextlib.suppress(OSError):  # Linux alone has it, and not in every sandbox
        Path("/proc/self/clear_refs").write_text("5")  # "reset the peak resident set size", proc_pid_clear_refs(5)


def peak_bytes(device: torch.device) -> int:
    """Return the peak of a GPU's tensors, or of this whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text() if status.exists() else "")
    if peak:
        return int(peak[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit  # never reset


WAITS: Final = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "hipStreamSynchronize")
ON_CPU: Final = "aten::_local_scalar_dense"  # where the same code would wait for a GPU


class HostSyncs:
    """Counts between `start()` and `stop()`."""

    def __init__(self) -> None:
        self._on_gpu = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        self._trace = profile(activities=activities)

    def start(self) -> None:
        """Begin to count."""
        self._trace.start()

    def stop(self) -> int:
        """Return how many there were."""
        self._trace.stop()
        events: Sequence[FunctionEvent] = self._trace.events() or []
        if self._on_gpu:
            return sum(event.name in WAITS for event in events)
        return sum(event.name == ON_CPU and not _of_optimizer(event) for event in events)


def _of_optimizer(event: FunctionEvent) -> bool:
    """Return whether the CPU's fused AdamW reads its step counts here; a GPU's does not."""
    parent = event.cpu_parent
    return parent is not None and ("fused_adam" in parent.name or _of_optimizer(parent))


Seen = Callable[[int, Literal["gradient", "weight"], Mapping[str, Tensor]], object]


class StepWitness(pl.Callback):
    """Call `see(step, kind, tensors by their parameters' names)`, steps from 1; weights also at step 0."""

    def __init__(self, see: Seen, *, num_steps: int) -> None:
        super().__init__()
        self._see, self._num_steps = see, num_steps

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._see(0, "weight", _parameters(pl_module))

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        parameters = _parameters(pl_module)
        gradients = {name: one.grad for name, one in parameters.items() if one.grad is not None}
        self._see(trainer.global_step + 1, "gradient", gradients)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not is_step_end(trainer, batch_idx):
            return
        self._see(trainer.global_step, "weight", _parameters(pl_module))
        trainer.should_stop = trainer.global_step >= self._num_steps


def _parameters(module: pl.LightningModule) -> dict[str, Tensor]:
    assert isinstance(module, CausalLMModule)
    return dict(module.language_model.named_parameters())
