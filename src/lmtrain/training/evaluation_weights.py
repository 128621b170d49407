"""The weights for evaluation and export, where they differ from the trained ones.

An optimizer such as schedule-free AdamW trains at one point and evaluates at another: its `eval()` and `train()`
move the weights between them (https://arxiv.org/abs/2405.15682). So does the outer step of workers, evaluated by their
global weights.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from torch import nn

from lmtrain.parallel.resharding import reshard


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
