"""Time one optimizer step of a run that is under way: as the Trainer takes it, then part by part, by hand.

Everything is timed with an idle device at both ends. The weights change as they would in training: use a run that is
thrown away.
"""

import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from typing_extensions import override

from lmtrain.accounting.step_parts import StepParts
from lmtrain.training.module import CausalLMModule
from lmtrain.training.steps import is_step_end
from lmtrain.training.token_batch import TokenBatch


class StepTimer(pl.Callback):
    """Let the Trainer warm up, time its steps for `seconds`, then the parts, and stop the run.

    It belongs last in the list. `parts` is None until the end; `wider_seconds_per_token` stays None where a micro batch
    twice as large was not tried, as compiled models would compile anew for it.
    """

    def __init__(self, *, seconds: float, warm_up_steps: int = 5, is_compiled: bool) -> None:
        super().__init__()
        self.parts: StepParts | None = None
        self.num_steps = 0
        self.first_step_seconds = 0.0
        self.wider_seconds_per_token: float | None = None
        self._seconds, self._warm_up_steps, self._is_compiled = seconds, warm_up_steps, is_compiled
        self._began = time.perf_counter()

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._first_step = trainer.global_step + 1
        self._began = time.perf_counter()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not is_step_end(trainer, batch_idx) or self.parts is not None:
            return
        done = trainer.global_step - self._first_step + 1
        if done in (1, self._warm_up_steps):
            wait_for(pl_module.device)
            if done == 1:
                self.first_step_seconds = time.perf_counter() - self._began
            self._began = time.perf_counter()
        self.num_steps = done - self._warm_up_steps
        if self.num_steps > 0 and time.perf_counter() - self._began >= self._seconds:
            wait_for(pl_module.device)
            self._finish(trainer, pl_module, whole=(time.perf_counter() - self._began) / self.num_steps)

    def _finish(self, trainer: pl.Trainer, module: pl.LightningModule, *, whole: float) -> None:
        assert isinstance(module, CausalLMModule)
        parts = HandStep(trainer, module)
        micro_steps = trainer.accumulate_grad_batches
        self.parts = parts.measure(whole=whole, micro_steps=micro_steps)
        if not self._is_compiled:
            self.wider_seconds_per_token = parts.wider_seconds_per_token()
        trainer.should_stop = True


class HandStep:
    """The parts of a micro-step, each by itself."""

    def __init__(self, trainer: pl.Trainer, module: CausalLMModule, *, repeats: int = 5) -> None:
        self._trainer, self._module, self._repeats = trainer, module, repeats
        self._batches = iter(trainer.datamodule.train_dataloader())  # pyright: ignore[reportAttributeAccessIssue]
        self._loss: torch.Tensor | None = None
        self._batch = self._next()

    def measure(self, *, whole: float, micro_steps: int) -> StepParts:
        """Return the medians of a few repeats, times the micro-steps of a step."""
        timed: dict[str, list[float]] = {name: [] for name in ("data", "forward", "backward", "optimizer")}
        for _ in range(self._repeats):
            timed["data"].append(self._time(self._next))
            timed["forward"].append(self._time(self._forward))
            timed["backward"].append(self._time(self._backward))
            timed["optimizer"].append(self._time(self._optimizer))
        seconds = {name: sorted(values)[len(values) // 2] for name, values in timed.items()}
        return StepParts(
            whole=whole,
            data=seconds["data"] * micro_steps,
            forward=seconds["forward"] * micro_steps,
            backward=seconds["backward"] * micro_steps,
            optimizer=seconds["optimizer"],
        )

    def wider_seconds_per_token(self) -> float | None:
        """Return what a token's forward and backward take in a micro batch twice as large; None: it does not fit."""
        self._batch = doubled(self._batch)
        try:
            timed = [self._time(self._forward) + self._time(self._backward) for _ in range(self._repeats)]
        except (torch.OutOfMemoryError, MemoryError):
            return None
        ids = self._batch if isinstance(self._batch, torch.Tensor) else self._batch.ids
        return sorted(timed)[len(timed) // 2] / (ids.shape[0] * (ids.shape[1] - 1))

    def _time(self, action: Callable[[], Any]) -> float:
        wait_for(self._module.device)
        began = time.perf_counter()
        action()
        wait_for(self._module.device)
        return time.perf_counter() - began

    def _next(self) -> Any:
        self._batch = self._trainer.strategy.batch_to_device(next(self._batches))
        return self._batch

    def _forward(self) -> None:
        with self._trainer.precision_plugin.forward_context():
            self._loss = self._module.training_step(self._batch, 0)

    def _backward(self) -> None:
        assert self._loss is not None
        self._loss.backward()
        self._loss = None

    def _optimizer(self) -> None:
        optimizer: Any = self._trainer.optimizers[0]
        self._module.configure_gradient_clipping(optimizer)
        optimizer.step()
        optimizer.zero_grad()


def doubled(batch: Any) -> Any:
    """Return a batch with every row twice."""
    if isinstance(batch, torch.Tensor):
        return torch.cat([batch, batch])
    parts: list[Any] = [None if part is None else torch.cat([part, part]) for part in batch]
    return TokenBatch(*parts)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was given."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
