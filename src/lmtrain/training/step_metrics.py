"""Losses and gradient norms of finished optimizer steps, kept on the device until someone asks.

Reading a value from an accelerator stalls it, so nothing here does, except `drain`, once a log interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from lmtrain.losses.base import LossTotal


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step: mean loss in nats per token over all micro-batches and ranks, and the gradient's norm.

    `was_skipped` says that it changed nothing, being a spike.
    """

    step: int
    loss: float
    gradient_norm: float
    lr: float
    was_skipped: bool = False


class FinishedStep(NamedTuple):
    """An optimizer step, counted from 1, with what is on its device: [nats, valid tokens], a norm [], a bool []."""

    step: int
    lr: float
    totals: Tensor
    gradient_norm: Tensor
    skip: Tensor | None


def fetch(steps: Sequence[FinishedStep]) -> list[list[float]]:
    """Return loss, gradient norm, whether it was skipped, and valid tokens of each step: one host sync."""
    totals = torch.stack([one.totals for one in steps])
    norms = torch.stack([one.gradient_norm for one in steps]).to(totals.dtype)
    nothing = totals.new_zeros(())
    skipped = torch.stack([nothing if one.skip is None else one.skip.to(totals.dtype) for one in steps])
    return torch.stack([totals[:, 0] / totals[:, 1], norms, skipped, totals[:, 1]], dim=1).tolist()


class StepMetrics:
    """Sum micro-batches into steps and hold the steps of one log interval."""

    def __init__(self) -> None:
        self._micro_totals: list[Tensor] = []  # each [2]: nats, valid tokens
        self._finished: list[FinishedStep] = []
        self._last_step: FinishedStep | None = None
        self._drained_tokens = 0
        self._first_step_tokens: int | None = None

    def add_micro_step(self, total: LossTotal) -> None:
        """Remember one micro-batch's summed loss and valid tokens, without leaving the device."""
        self._micro_totals.append(torch.stack([total.nats.detach().double(), total.num_tokens.double()]))

    @property
    def last_step(self) -> FinishedStep | None:
        """Return the newest finished step, which is still known after a drain."""
        return self._last_step

    @property
    def left_sound_weights(self) -> Tensor | None:
        """Return whether the newest finished step was finite or changed nothing, still on its device, as bool []."""
        if self._last_step is None:
            return None
        _, _, totals, gradient_norm, skip = self._last_step
        is_finite = (totals[0] / totals[1]).isfinite() & gradient_norm.isfinite()
        return is_finite if skip is None else is_finite | skip.bool()

    @property
    def trained_tokens(self) -> int:
        """Return the tokens that carried loss in all finished steps, over all ranks; no read just after a drain."""
        return self._drained_tokens + sum(int(one.totals[1].item()) for one in self._finished)

    @property
    def first_step_tokens(self) -> int:
        """Return those of the first step, which nobody times; no read after a drain."""
        if self._first_step_tokens is None:
            return int(self._finished[0].totals[1].item()) if self._finished else 0
        return self._first_step_tokens

    def reduce_totals(self) -> Tensor:
        """Return [nats, valid tokens] of the open step, summed over its micro-batches and all ranks, as float64 [2]."""
        first, *others = self._micro_totals
        totals = torch.stack([first, *others]).sum(0) if others else first
        self._micro_totals.clear()
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(totals)
        return totals

    def finish_step(
        self, step: int, *, totals: Tensor, gradient_norm: Tensor, lr: float, skip: Tensor | None = None
    ) -> None:
        """Close a step, counted from 1, with its totals [2], gradient norm [] and whether it is skipped []."""
        self._last_step = FinishedStep(step, lr, totals, gradient_norm.detach(), skip)
        self._finished.append(self._last_step)

    def drain(self) -> list[StepRecord]:
        """Fetch every finished step since the last call: the one host sync of a log interval."""
        if not self._finished:
            return []
        finished, self._finished = self._finished, []
        values = fetch(finished)
        tokens = [int(num_tokens) for *_, num_tokens in values]
        self._drained_tokens += sum(tokens)
        if self._first_step_tokens is None:
            self._first_step_tokens = tokens[0]
        return [
            StepRecord(step=one.step, lr=one.lr, loss=loss, gradient_norm=norm, was_skipped=bool(skipped))
            for one, (loss, norm, skipped, _) in zip(finished, values, strict=True)
        ]
