"""The weights for evaluation and export, where they differ from the trained ones.

An optimizer such as schedule-free AdamW trains at one point and evaluates at another: its `eval()` and `train()`
move the weights between them (https://arxiv.org/abs/2405.15682).
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from lmtrain.parallel.resharding import reshard


@runtime_checkable
class WeightSwitch(Protocol):
    """An optimizer with other weights for evaluation than for training."""

    def train(self) -> None:
        """Move the weights to where they are trained."""
        ...

    def eval(self) -> None:
        """Move the weights to where they are evaluated."""
        ...


def to_training(optimizers: Iterable[Optimizer]) -> None:
    """Put each such optimizer's weights where they are trained; leave the others."""
    for optimizer in optimizers:
        if isinstance(optimizer, WeightSwitch):
            optimizer.train()


def to_evaluation(optimizers: Iterable[Optimizer]) -> None:
    """Put each such optimizer's weights where they are evaluated; leave the others."""
    for optimizer in optimizers:
        if isinstance(optimizer, WeightSwitch):
            optimizer.eval()


@contextmanager
def evaluation_weights(optimizers: list[Optimizer], model: nn.Module | None = None) -> Generator[None]:
    """Hold the weights for evaluation, and those for training again afterwards.

    `model` computes with them meanwhile: a sharded one would go on with weights gathered before.
    """
    sharded = model if any(isinstance(optimizer, WeightSwitch) for optimizer in optimizers) else None
    to_evaluation(optimizers)
    if sharded is not None:
        reshard(sharded)
    try:
        yield
    finally:
        to_training(optimizers)
        if sharded is not None:
            reshard(sharded)
