"""Callbacks with a fault each: signals to their own process, a full disk, a spike, a flipped bit, a wrong result."""

import contextlib
import itertools
import math
import os
import shutil
import signal
from collections.abc import Iterator
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


class KillInValidation(pl.Callback):
    """Send SIGKILL to the run between two batches of its validation after `step` steps, the first time."""

    def __init__(self, *, step: int, context: RunContext) -> None:
        super().__init__()
        self._step, self._marker = step, Path(context.folder) / f"killed-validating-{step}"

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        datamodule: Any = trainer.datamodule
        batches_of = datamodule.held_out_batches

        def batches(*words: Any, **settings: Any) -> Iterator[Any]:
            for number, batch in enumerate(batches_of(*words, **settings)):
                if number == 2 and trainer.global_step == self._step and not self._marker.exists():
                    self._marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        datamodule.held_out_batches = batches


class InterruptTwiceAt(pl.Callback):
    """Send SIGINT to every rank twice before it trains the first micro-batch of `step` (from 0)."""

    def __init__(self, *, step: int) -> None:
        super().__init__()
        self._step = step

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)


class FillDiskAt(pl.Callback):
    """Fill the disk of the run, a small one, to its last byte before `step` (from 0); free it before `until`."""

    def __init__(self, *, step: int, until: int, context: RunContext) -> None:
        super().__init__()
        self._step, self._until = step, until
        self._filler = Path(context.folder).parent / "filler"

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:
            assert shutil.disk_usage(self._filler.parent).total < 1 << 28, "this is the machine's own disk"
            with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
        elif trainer.global_step == self._until:
            self._filler.unlink()


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


class SpikeAt(pl.Callback):
    """Multiply the gradient of one batch of the run's order (from 0), whenever it is trained on."""

    def __init__(self, *, number: int, factor: float = 1e5, context: RunContext) -> None:
        super().__init__()
        self._number, self._factor, self._batch = number, factor, context.plan.batch

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Any) -> None:
        if self._batch.number_of(trainer.global_step) == self._number:
            for parameter in pl_module.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self._factor)


class FlipBitAt(pl.Callback):
    """Flip the lowest bit of one weight of one rank after a step (from 0)."""

    def __init__(self, *, step: int, rank: int) -> None:
        super().__init__()
        self._step, self._rank = step, rank

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step and trainer.global_rank == self._rank:
            weight = dict(pl_module.language_model.named_parameters())["head.weight"]
            weight.data.view(torch.int32)[1, 2] ^= 1


class MiscomputeAt(FlipBitAt):
    """Return another loss of one rank at a step (from 0), the second time it is computed."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        step, share_of, calls = pl_module.step, pl_module.step.share_of, itertools.count(1)

        def wrong(batch: Any) -> Any:
            total, loss = share_of(batch)
            is_here = (trainer.global_step, trainer.global_rank) == (self._step, self._rank) and next(calls) == 2
            return total, loss * (1 + torch.finfo(loss.dtype).eps) if is_here else loss

        step.share_of = wrong

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Leave the weights alone."""


class BreakGradientAt(FlipBitAt):
    """Fill the first gradient of one rank with inf or nan at a step (from 0), before ranks add them up."""

    def __init__(self, *, step: int, rank: int, is_infinite: bool) -> None:
        super().__init__(step=step, rank=rank)
        self._value = math.inf if is_infinite else math.nan

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        def broken(gradient: torch.Tensor) -> torch.Tensor:
            is_here = (trainer.global_step, trainer.global_rank) == (self._step, self._rank)
            return torch.full_like(gradient, self._value) if is_here else gradient

        next(pl_module.language_model.parameters()).register_hook(broken)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Leave the weights alone."""
