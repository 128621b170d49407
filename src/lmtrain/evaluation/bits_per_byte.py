"""Bits per byte: a model's quality on text, comparable between tokenizers.

bits per byte = sum of nats / (ln 2 x sum of bytes), sums over every valid target of every batch of every rank; special
tokens have no bytes. B batch, T tokens, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lmtrain.errors import DataError
from lmtrain.models.base import LanguageModel
from lmtrain.models.loss import Loss
from lmtrain.parallel.reduction import sum_over_ranks


@dataclass(frozen=True, kw_only=True)
class BitsPerByte:
    """Sums over an evaluation; nothing here was averaged before it was added up."""

    nats: float
    num_bytes: int
    num_tokens: int

    @property
    def bits_per_byte(self) -> float:
        """Return bits per byte of text."""
        return self.nats / (math.log(2) * self.num_bytes)

    @property
    def nats_per_token(self) -> float:
        """Return the mean loss of a token."""
        return self.nats / self.num_tokens


def evaluate(
    model: LanguageModel,
    batches: Iterable[tuple[Tensor, ...]],
    *,
    token_bytes: Tensor,
    loss: Loss,
    num_copies: int = 1,
) -> BitsPerByte:
    """Score every valid target of (inputs, targets), int64 [B, T] each with -100 for no target, over all ranks.

    A batch may have a third tensor, the documents [B, T], hidden from one another.

    `token_bytes` [V] is how many bytes of text each token stands for. Every rank calls this with batches of its own,
    or `num_copies` neighbours with the same ones;
    the model is put into evaluation mode and back. Raises: DataError when the targets have no bytes at all.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=next(model.parameters()).device)
    for of_batch in sums_of_batches(model, batches, token_bytes=token_bytes, loss=loss):
        sums += of_batch
    nats, num_bytes, num_tokens = (sum_over_ranks(sums) / num_copies).tolist()
    if not num_bytes:
        raise DataError(f"validation has {num_tokens:.0f} targets and 0 bytes of text; it needs at least one byte.")
    return BitsPerByte(nats=nats, num_bytes=round(num_bytes), num_tokens=round(num_tokens))


def sums_of_batches(
    model: LanguageModel, batches: Iterable[tuple[Tensor, ...]], *, token_bytes: Tensor, loss: Loss
) -> Iterator[Tensor]:
    """Yield nats, bytes and tokens of each batch of this rank: fp64 [3], exact below 2^53; see `evaluate`."""
    device = next(model.parameters()).device
    token_bytes = token_bytes.to(device, torch.float64)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():  # inference_mode would make compiled blocks compile again
            for inputs, targets, *documents in batches:
                seen = documents[0].to(device) if documents else None
                yield _score(model, inputs.to(device), targets.to(device), seen, token_bytes, loss)
    finally:
        model.train(was_training)


def _score(
    model: LanguageModel, inputs: Tensor, targets: Tensor, documents: Tensor | None, token_bytes: Tensor, loss: Loss
) -> Tensor:
    _, nats, num_tokens = model(inputs, targets, loss, documents)
    valid = targets >= 0
    num_bytes = token_bytes[targets.clamp(min=0)].masked_fill(~valid, 0).sum()
    return torch.stack((nats.to(token_bytes.dtype), num_bytes, num_tokens.to(token_bytes.dtype)))
