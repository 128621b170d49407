"""An exponential moving average of the weights: smoother than they are, and evaluated and exported in their place.

Kept in fp32 as frozen parameters of the training module, so that a strategy shards and a checkpoint saves it.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lmtrain.accounting.model.optimizer_state import FP32_BYTES
from lmtrain.accounting.options.parts import AverageFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.models.base import LanguageModel
from lmtrain.optim.sharded import local
from lmtrain.parallel.gradients import reshard


def none() -> None:
    """Keep no average."""


WEIGHT_AVERAGE_FACTS: Final = AverageFacts(num_bytes=FP32_BYTES)


class WeightAverage(nn.Module):
    """Average the weights after each step; `in_place_of` lets a model compute with the averages for a while."""

    def __init__(self, *, decay: float) -> None:
        """Keep `decay` of the average at each step, and less in the first ones: (1 + step) / (10 + step)."""
        super().__init__()
        require_number("weight_average.decay", decay, at_least=0, below=1, usual="0.999")
        self._decay = decay

    def start(self, model: LanguageModel) -> None:
        """Begin with the weights as they are, under their own names."""
        for name, parameter in model.named_parameters():
            *path, last = name.split(".")
            place: nn.Module = self
            for part in path:
                if part not in dict(place.named_children()):
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            place.register_parameter(last, nn.Parameter(parameter.detach().float().clone(), requires_grad=False))

    def start_again(self, model: LanguageModel) -> None:
        """Begin with the weights as they are now."""
        _fill([local(average) for average in self.parameters()], _weights(model))

    @torch.no_grad()
    def update(self, model: LanguageModel, *, step: int) -> None:
        """Move towards the weights after step number `step`, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averages = [local(average) for average in self.parameters()]
        weights = [weight.to(torch.float32) for weight in _weights(model)]
        torch._foreach_lerp_(averages, weights, 1 - decay)  # pyright: ignore[reportPrivateUsage]  # as in torch's swa_utils

    @contextmanager
    def in_place_of(self, model: LanguageModel) -> Generator[None]:
        """Let the model have the averages as its weights, and its own again afterwards."""
        reshard(model)  # evaluation leaves the weights outside the blocks gathered
        weights = _weights(model)
        own = [weight.clone() for weight in weights]
        _fill(weights, [local(average) for average in self.parameters()])
        reshard(model)
        try:
            yield
        finally:
            _fill(weights, own)
            reshard(model)


def _weights(model: LanguageModel) -> list[Tensor]:
    return [local(parameter).detach() for parameter in model.parameters()]


@torch.no_grad()
def _fill(weights: list[Tensor], values: list[Tensor]) -> None:
    torch._foreach_copy_(weights, values)  # pyright: ignore[reportPrivateUsage]  # as in torch's swa_utils


@runtime_checkable
class WeightSwitch(Protocol):
    """A holder of other weights for evaluation than for training."""

    def train(self) -> None:
        """Move the weights to where they are trained."""
        ...

    def eval(self) -> None:
        """Move the weights to where they are evaluated."""
        ...


def to_training(holders: Iterable[object]) -> None:
    """Put each such holder's weights where they are trained; leave the others."""
    for holder in holders:
        if isinstance(holder, WeightSwitch):
            holder.train()


def to_evaluation(holders: Iterable[object]) -> None:
    """Put each such holder's weights where they are evaluated; leave the others."""
    for holder in holders:
        if isinstance(holder, WeightSwitch):
            holder.eval()


@contextmanager
def evaluation_weights(holders: Sequence[object], model: nn.Module | None = None) -> Generator[None]:
    """Hold the weights for evaluation, and those for training again afterwards.

    `model` computes with them meanwhile: a sharded one would go on with weights gathered before.
    """
    sharded = model if any(isinstance(holder, WeightSwitch) for holder in holders) else None
    to_evaluation(holders)
    if sharded is not None:
        reshard(sharded)
    try:
        yield
    finally:
        to_training(holders)
        if sharded is not None:
            reshard(sharded)
