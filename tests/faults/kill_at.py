"""Callbacks that send their own process signals in the middle of a step, or fail there as a GPU does."""

import os
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from lmtrain.training.context import RunContext


class KillAt(pl.Callback):
    """Send SIGKILL to one rank before it trains micro-batch `micro_step` of `step` (both from 0), the first time."""

    def __init__(self, *, step: int, micro_step: int = 0, rank: int = 0, context: RunContext) -> None:
        super().__init__()
        self._moment = (step, micro_step)
        self._rank = rank
        self._marker = Path(context.folder) / f"killed-at-{step}"

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        moment = (trainer.global_step, batch_idx % trainer.accumulate_grad_batches)
        if moment == self._moment and trainer.global_rank == self._rank and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class InterruptTwiceAt(pl.Callback):
    """Send SIGINT to every rank twice before it trains the first micro-batch of `step` (from 0)."""

    def __init__(self, *, step: int) -> None:
        super().__init__()
        self._step = step

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)


class FailAt(pl.Callback):
    """Raise torch's own error inside the forward pass of `step` (from 0), while a checkpoint may be on its way.

    `kind` is the class's name in torch; its text is `said`.
    """

    def __init__(self, *, step: int, kind: str, said: str) -> None:
        super().__init__()
        self._step, self._failure = step, getattr(torch, kind)(said)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:
            pl_module.language_model.register_forward_pre_hook(self._fail)

    def _fail(self, *_: object) -> None:
        raise self._failure
