"""Losses and gradient norms of finished optimizer steps, kept on the device until someone asks.

Reading a value from an accelerator stalls it, so nothing here does, except `drain`, once a log interval.
"""

from dataclasses import dataclass

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


class StepMetrics:
    """Sum micro-batches into steps and hold the steps of one log interval."""

    def __init__(self) -> None:
        self._micro_totals: list[Tensor] = []  # each [2]: nats, valid tokens
        self._finished: list[tuple[int, float, Tensor]] = []  # step, lr, [4]: loss, gradient norm, skipped, tokens
        self._last_step: Tensor | None = None
        self._drained_tokens = 0
        self._first_step_tokens: int | None = None

    def add_micro_step(self, total: LossTotal) -> None:
        """Remember one micro-batch's summed loss and valid tokens, without leaving the device."""
        self._micro_totals.append(torch.stack([total.nats.detach().double(), total.num_tokens.double()]))

    @property
    def last_step(self) -> Tensor | None:
        """Return [loss, gradient norm, skipped] of the newest finished step, still on its device, as float64 [3]."""
        return self._last_step

    @property
    def left_sound_weights(self) -> Tensor | None:
        """Return whether the newest finished step was finite or changed nothing, still on its device, as bool []."""
        if self._last_step is None:
            return None
        return self._last_step[:2].isfinite().all() | (self._last_step[2] > 0)

    @property
    def trained_tokens(self) -> int:
        """Return the tokens that carried loss in all finished steps, over all ranks; no read just after a drain."""
        return self._drained_tokens + sum(int(value[3].item()) for _, _, value in self._finished)

    @property
    def first_step_tokens(self) -> int:
        """Return those of the first step, which nobody times; no read after a drain."""
        if self._first_step_tokens is None:
            return int(self._finished[0][2][3].item()) if self._finished else 0
        return self._first_step_tokens

    def reduce_totals(self) -> Tensor:
        """Return [nats, valid tokens] of the open step, summed over its micro-batches and all ranks, as float64 [2]."""
        totals = torch.stack(self._micro_totals).sum(0)
        self._micro_totals.clear()
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(totals)
        return totals

    def finish_step(
        self, step: int, *, totals: Tensor, gradient_norm: Tensor, lr: float, skip: Tensor | None = None
    ) -> None:
        """Close a step, counted from 1, with its totals [2], gradient norm [] and whether it is skipped []."""
        skipped = totals.new_zeros(()) if skip is None else skip.to(totals.dtype)
        self._last_step = torch.stack([totals[0] / totals[1], gradient_norm.detach().double(), skipped])
        self._finished.append((step, lr, torch.cat([self._last_step, totals[1:]])))

    def drain(self) -> list[StepRecord]:
        """Fetch every finished step since the last call: the one host sync of a log interval."""
        if not self._finished:
            return []
        finished, self._finished = self._finished, []
        values = torch.stack([value for _, _, value in finished]).tolist()
        tokens = [int(num_tokens) for *_, num_tokens in values]
        self._drained_tokens += sum(tokens)
        if self._first_step_tokens is None:
            self._first_step_tokens = tokens[0]
        return [
            StepRecord(step=step, lr=lr, loss=loss, gradient_norm=norm, was_skipped=bool(skipped))
            for (step, lr, _), (loss, norm, skipped, _) in zip(finished, values, strict=True)
        ]
