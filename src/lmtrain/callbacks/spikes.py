"""Take steps back whose loss or gradient norm stands out, in any Trainer."""

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.errors import Diverged
from lmtrain.training.context import RunCallback
from lmtrain.training.intervals import is_step_end
from lmtrain.training.spikes import SpikeFilter, Undo


class Spikes(RunCallback):
    """Undo a step whose loss or gradient norm is `num_sigmas` standard deviations above the mean of `window_steps`.

    Until half the window is full only a value that is not finite counts. With `stops` such a step ends training with
    `Diverged` instead. The device decides, and the host never waits for it. A run of lmtrain has the option `spikes`
    for this. `num_skipped` counts the steps taken back, and is saved in checkpoints. For modules with one optimizer.
    """

    def __init__(self, *, num_sigmas: float = 6.0, window_steps: int = 128, stops: bool = False) -> None:
        super().__init__()
        self._filter = SpikeFilter(num_sigmas=num_sigmas, window_steps=window_steps, then="halt" if stops else "skip")
        self._stops = stops
        self._loss: Tensor | None = None
        self._undo: tuple[Undo, Tensor] | None = None

    @property
    def num_skipped(self) -> int:
        """Return how many steps were taken back; this waits for the device."""
        return int(self._filter.num_skipped)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._filter.to(pl_module.device)

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        assert self._loss is not None
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        is_spike = self._filter.judge(torch.stack([self._loss.double(), norm.double()]))
        if self._stops and bool(is_spike):
            step = trainer.global_step + 1
            raise Diverged(f"Step {step} has loss {self._loss:g} and gradient norm {norm:g}, which stand out.")
        self._undo, self._loss = (Undo(optimizer), is_spike), None

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._undo is not None and is_step_end(trainer, batch_idx):
            undo, skip = self._undo
            undo.where(skip)
            self._undo = None

    @override
    def state_dict(self) -> dict[str, Any]:
        return {name: value.cpu() for name, value in self._filter.state_dict().items()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._filter.load_state_dict(state_dict)
