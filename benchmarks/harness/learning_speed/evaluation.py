"""One ruler for every loop: bits per byte from logits alone, whatever model or loss they come from."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness.learning_speed.task import Predict
from lmtrain.data.windows import IGNORED


@dataclass(frozen=True)
class Sums:
    """Nats and bytes of some targets."""

    nats: float = 0.0
    num_bytes: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.nats + other.nats, self.num_bytes + other.num_bytes)

    @property
    def bits_per_byte(self) -> float:
        """Return bits per byte of text."""
        return self.nats / (math.log(2) * self.num_bytes)


def score(logits: Tensor, targets: Tensor, token_bytes: Tensor) -> Sums:
    """Add up nats and bytes of logits [B, T, V] and targets [B, T], of which those of -100 do not count."""
    flat = targets.flatten()
    nats = F.cross_entropy(logits.float().flatten(0, 1), flat, ignore_index=IGNORED, reduction="none")
    return Sums(nats.double().sum().item(), int(token_bytes[flat[flat != IGNORED]].sum()))


def evaluate(
    predict: Predict, batches: Iterable[tuple[Tensor, Tensor]], token_bytes: Tensor, *, every: int = 1
) -> tuple[Sums, Sums]:
    """Score every batch, and of these each `every`-th one by itself: all, part."""
    everything, part = Sums(), Sums()
    with torch.no_grad():
        for number, (inputs, targets) in enumerate(batches):
            sums = score(predict(inputs), targets, token_bytes)
            everything += sums
            part += sums if number % every == 0 else Sums()
    return everything, part
