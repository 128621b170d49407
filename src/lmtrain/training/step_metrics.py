"""Losses and gradient norms of finished optimizer steps, kept on the device until someone asks.

Reading a value from an accelerator stalls it, so nothing here does, except `drain`, once a log interval.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from lmtrain.models.head import LossTotal
from lmtrain.tracking.stopwatch import unix_seconds
from lmtrain.training.objectives.objective import ObjectiveSums


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step: mean loss in nats per token over all micro-batches and ranks, and the gradient's norm.

    `was_skipped` says that it changed nothing, being a spike; `is_spike`, that it is one and was made. `num_tokens`
    carried loss; without any the loss is NaN. `attention_flops` are by the documents of its rows, 0 without them.
    `time` in unix seconds is when the host was through with its gradients.
    """

    step: int
    loss: float
    gradient_norm: float
    lr: float
    was_skipped: bool = False
    is_spike: bool = False
    num_tokens: int = field(default=1, compare=False)
    attention_flops: float = field(default=0.0, compare=False)
    further: tuple[float, ...] = field(default=(), compare=False)
    time: float = field(default=0.0, compare=False)


class StepSums(NamedTuple):
    """Nats and valid tokens of a step over all micro-batches and ranks: scalars on the device, of any type.

    `further` [K] are an objective's own sums: the divisor, the examples, and measures over these; None without them.
    `attention_flops` are of the tokens that each one sees, None where rows have no documents.
    """

    nats: Tensor
    num_tokens: Tensor
    further: Tensor | None = None
    attention_flops: Tensor | None = None

    @property
    def divisor(self) -> Tensor:
        """Return the divisor of gradients and of the loss: tokens, or the first of the further sums."""
        return self.num_tokens if self.further is None else self.further[0]

    @property
    def loss(self) -> Tensor:
        """Return nats per token, or the objective per unit of the count, float64 []."""
        return self.nats.double() / self.divisor


class FinishedStep(NamedTuple):
    """An optimizer step, counted from 1, with its values on the device: its sums, a norm [], a flag []."""

    step: int
    lr: float
    sums: StepSums
    gradient_norm: Tensor
    skip: Tensor | None
    time: float


def fetch(steps: Sequence[FinishedStep], *, takes_back: bool) -> list[StepRecord]:
    """Read steps by one host sync; either every step has a flag, or none has. `takes_back`: a spike changes nothing."""
    none = torch.zeros_like(steps[0].gradient_norm)
    rows = [
        (
            *(one.sums.nats, one.sums.num_tokens, one.gradient_norm, none if one.skip is None else one.skip),
            none if one.sums.attention_flops is None else one.sums.attention_flops,
            *(one.sums.divisor, *(() if one.sums.further is None else one.sums.further)),
        )
        for one in steps
    ]
    read: list[list[float]] = torch.stack([torch.stack(one).double() for one in zip(*rows, strict=True)]).T.tolist()
    records: list[StepRecord] = []
    for step, (nats, tokens, norm, flag, flops, divisor, *further) in zip(steps, read, strict=True):
        _, examples, *totals = further or (0.0, 0.0)
        records.append(
            StepRecord(
                *(step.step, nats / divisor if divisor else math.nan, norm, step.lr),
                was_skipped=bool(flag) and takes_back,
                is_spike=bool(flag) and not takes_back,
                num_tokens=int(tokens),
                attention_flops=flops,
                further=tuple(total / examples if examples else math.nan for total in totals),
                time=step.time,
            )
        )
    return records


def over_workers(steps: Sequence[FinishedStep], *, num_workers: int) -> list[FinishedStep]:
    """Return steps of this worker with the sums and the mean gradient norm of all workers: one all-reduce."""
    own = torch.stack([torch.cat([_values(one.sums), one.gradient_norm.double().view(1)]) for one in steps])
    distributed.all_reduce(own)
    return [
        one._replace(sums=summed(values[:-1]), gradient_norm=values[-1] / num_workers)
        for one, values in zip(steps, own, strict=True)
    ]


def summed(values: Tensor) -> StepSums:
    """Return sums over others from nats, tokens and, if counted, the FLOPs of attention: [2 or 3]."""
    nats, num_tokens, *flops = values
    return StepSums(nats, num_tokens, None, *flops)


def _values(sums: StepSums) -> Tensor:
    """Return nats, tokens and, if counted, the FLOPs of attention: float64 [2 or 3]."""
    flops = [] if sums.attention_flops is None else [sums.attention_flops]
    return torch.stack([one.double() for one in (*sums[:2], *flops)])


class StepMetrics:
    """Sum micro-batches into steps and hold the steps of one log interval."""

    def __init__(self, *, num_copies: int = 1, num_workers: int = 1, takes_back: bool = True) -> None:
        """Count `num_copies` ranks with the same tokens once; several workers add their steps up in a `drain`.

        `takes_back`: a spike changes nothing.
        """
        self._takes_back = takes_back
        self._num_copies, self._num_workers = num_copies, num_workers
        self._micro_steps: list[StepSums] = []
        self._finished: list[FinishedStep] = []
        self.last_step: FinishedStep | None = None  # the newest finished one, known also after a drain
        self._followers: list[list[StepRecord]] = []
        self._drained_tokens, self._drained_flops = 0, 0.0
        self.num_groups = 1  # jobs that train these steps together
        self._first_step_tokens: int | None = None

    def add_micro_step(
        self, total: LossTotal | ObjectiveSums | StepSums, attention_flops: Tensor | None = None
    ) -> None:
        """Remember one micro-batch's summed loss, valid tokens and FLOPs [], without leaving the device."""
        further: Tensor | None = getattr(total, "further", None)
        self._micro_steps.append(StepSums(total.nats.detach(), total.num_tokens, further, attention_flops))

    @property
    def left_sound_weights(self) -> Tensor | None:
        """Return whether the newest finished step was finite or changed nothing, still on its device, as bool []."""
        last = self.last_step
        if last is None:
            return None
        is_finite = last.sums.nats.isfinite() & last.gradient_norm.isfinite()
        return is_finite if last.skip is None or not self._takes_back else is_finite | last.skip.bool()

    @property
    def trained_tokens(self) -> int:
        """Return the tokens with loss in all finished steps, over all ranks; no read just after a drain.

        Of other workers' steps only those drained are known.
        """
        return self._drained_tokens + sum(int(one.sums.num_tokens.item()) for one in self._finished)

    @property
    def attention_flops(self) -> float:
        """Return those of all finished steps by the documents of their rows, as `trained_tokens`; 0 without them."""
        counted = (one.sums.attention_flops for one in self._finished)
        return self._drained_flops + sum(float(flops.item()) for flops in counted if flops is not None)

    @property
    def first_step_tokens(self) -> int:
        """Return those of the first step, timed by nobody; no read after a drain."""
        if self._first_step_tokens is None:
            return int(self._finished[0].sums.num_tokens.item()) if self._finished else 0
        return self._first_step_tokens

    def take_micro_steps(self) -> Tensor:
        """Return this rank's part of the open step for `summed`, float64 [2 or 3], and forget its micro-batches."""
        taken, self._micro_steps = self._micro_steps, []
        return torch.stack([_values(one) for one in taken]).sum(dim=0)

    def reduce_micro_steps(self) -> StepSums:
        """Return the sums of the open step, over its micro-batches and the ranks of this worker.

        They are float64 if there are several.
        """
        first, *others = self._micro_steps
        is_distributed = self._num_workers == 1 and distributed.is_available() and distributed.is_initialized()
        self._micro_steps.clear()
        if not (others or is_distributed):
            return first
        further = [[] if one.further is None else [one.further.double()] for one in (first, *others)]
        flat = [torch.cat([_values(one), *more]) for one, more in zip((first, *others), further, strict=True)]
        totals = torch.stack(flat).sum(dim=0)
        if is_distributed:
            distributed.all_reduce(totals)
            totals = totals if self._num_copies == 1 else totals / self._num_copies
        num = 2 if first.attention_flops is None else 3
        further = None if first.further is None else totals[num:]
        return StepSums(totals[0], totals[1], further, *totals[2:num])

    def finish_step(
        self, step: int, *, sums: StepSums, gradient_norm: Tensor, lr: float, skip: Tensor | None = None
    ) -> None:
        """Close a step, counted from 1, with its sums, gradient norm [] and whether it is skipped []."""
        self.last_step = FinishedStep(step, lr, sums, gradient_norm.detach(), skip, unix_seconds())
        self._finished.append(self.last_step)

    def follow(self) -> Callable[[], list[StepRecord]]:
        """Return a function that drains, and returns the steps from now on, each once. Every rank must call it."""
        unseen: list[StepRecord] = []
        self._followers.append(unseen)

        def take() -> list[StepRecord]:
            self.drain()
            found = unseen.copy()
            unseen.clear()
            return found

        return take

    def drain(self) -> list[StepRecord]:
        """Fetch every finished step since the last call, for all who follow: the one host sync of a log interval.

        Every rank must call it.
        """
        if not self._finished:
            return []
        finished, self._finished = self._finished, []
        if self._num_workers > 1:
            finished = over_workers(finished, num_workers=self._num_workers)
        records = fetch(finished, takes_back=self._takes_back)
        self._drained_tokens += sum(record.num_tokens for record in records)
        self._drained_flops += sum(record.attention_flops for record in records)
        if self._first_step_tokens is None:
            self._first_step_tokens = records[0].num_tokens
        for follower in self._followers:
            follower += records
        return records
