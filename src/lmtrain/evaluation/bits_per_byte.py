"""Bits per byte: a model's quality on text, comparable between tokenizers.

bits per byte = sum of nats / (ln 2 x sum of bytes), sums over every valid target of every batch of every rank; special
tokens have no bytes. B batch, T tokens, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from lmtrain.data.windows import IGNORED, HeldOutWindows
from lmtrain.errors import DataError
from lmtrain.evaluation.scored_rows import NOT_A_NUMBER
from lmtrain.models.base import LanguageModel, in_evaluation_mode
from lmtrain.models.head import Loss
from lmtrain.parallel.gradients import sum_over_ranks

FEWEST_BATCHES: Final = 16


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

    A batch may have a third tensor, the documents [B, T], which do not see one another. `token_bytes` [V] is how many
    bytes of text each token stands for. Every rank calls this with different batches, or `num_copies` neighbours with
    the same ones. The model is put into evaluation mode and back.

    Raises:
        DataError: The targets have no bytes.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=next(model.parameters()).device)
    for of_batch in sums_of_batches(model, batches, token_bytes=token_bytes, loss=loss):
        sums += of_batch
    nats, num_bytes, num_tokens = (sum_over_ranks(sums) / num_copies).tolist()
    if not num_bytes:
        raise DataError(f"validation: must have at least 1 byte of text, got 0 in {num_tokens:.0f} targets.")
    return BitsPerByte(nats=nats, num_bytes=round(num_bytes), num_tokens=round(num_tokens))


def sums_of_batches(
    model: LanguageModel, batches: Iterable[tuple[Tensor, ...]], *, token_bytes: Tensor, loss: Loss
) -> Iterator[Tensor]:
    """Yield nats, bytes and tokens of each batch of this rank: fp64 [3], exact below 2^53; see `evaluate`."""
    device = next(model.parameters()).device
    token_bytes = token_bytes.to(device, torch.float64)
    with in_evaluation_mode(model), torch.no_grad():  # inference_mode would make compiled blocks compile again
        for inputs, targets, *documents in batches:
            seen = documents[0].to(device) if documents else None
            yield _score(model, inputs.to(device), targets.to(device), seen, token_bytes, loss)


def _score(
    model: LanguageModel, inputs: Tensor, targets: Tensor, documents: Tensor | None, token_bytes: Tensor, loss: Loss
) -> Tensor:
    _, nats, num_tokens = model(inputs, targets, loss, documents)
    valid = targets >= 0
    num_bytes = token_bytes[targets.clamp(min=0)].masked_fill(~valid, 0).sum()
    return torch.stack((nats.to(token_bytes.dtype), num_bytes, num_tokens.to(token_bytes.dtype)))


@dataclass(frozen=True, kw_only=True)
class TextScore(BitsPerByte):
    """The sums over a text, and the standard error of its bits per byte; None for a single batch."""

    standard_error: float | None


def score_held_out(
    model: LanguageModel, batches: Iterable[tuple[Tensor, ...]], *, token_bytes: Tensor, loss: Loss
) -> TextScore:
    """Score batches as `evaluate` does, in this process alone.

    The error is for a ratio of sums over batches: the differences of their nats from the mean rate by their bytes.
    """
    by_batch = list(sums_of_batches(model, batches, token_bytes=token_bytes, loss=loss))
    sums = torch.stack(by_batch or [torch.zeros(3)]).cpu()  # [n, 3]
    nats, num_bytes, num_tokens = sums.sum(0).tolist()
    if not num_bytes:
        raise DataError(f"text: must have at least 1 byte, got 0 in {num_tokens:.0f} targets.")
    if math.isnan(nats):
        raise DataError(NOT_A_NUMBER)
    n, residuals = len(sums), sums[:, 0] - nats / num_bytes * sums[:, 1]
    error = None if n < 2 else math.sqrt(n / (n - 1) * float(residuals.square().sum())) / (num_bytes * math.log(2))
    return TextScore(nats=nats, num_bytes=round(num_bytes), num_tokens=round(num_tokens), standard_error=error)


def batches_of_windows(windows: HeldOutWindows, *, batch_tokens: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield inputs and targets [B, T], and documents where they are counted, of every window of a split once."""
    size = _rows_at_once(windows.num_windows, len(windows.window(0).inputs), batch_tokens)
    for begin in range(0, windows.num_windows, size):
        found = [windows.window(number) for number in range(begin, min(begin + size, windows.num_windows))]
        columns = zip(*(each if each.documents is not None else each[:2] for each in found), strict=True)
        yield tuple(torch.from_numpy(np.stack(column)) for column in columns)  # pyright: ignore[reportArgumentType]


def batches_of_texts(
    texts: Sequence[Sequence[int]], *, begin_id: int, context_tokens: int, batch_tokens: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets [B, T] to predict every id of every text once.

    A text longer than the context is cut into windows; the first window's first id is predicted from `begin_id`, a
    later one's from the last id of the one before.
    """
    rows = [
        ([begin_id, *text][start : start + context_tokens + 1])
        for text in texts
        for start in range(0, len(text), context_tokens)
    ]
    size = _rows_at_once(len(rows), context_tokens, batch_tokens)
    rows.sort(key=len, reverse=True)  # like lengths together, for little padding
    for begin in range(0, len(rows), size):
        some = rows[begin : begin + size]
        longest = len(some[0]) - 1
        inputs, targets = torch.zeros(len(some), longest, dtype=torch.int64), torch.full((len(some), longest), IGNORED)
        for place, row in enumerate(some):
            inputs[place, : len(row) - 1] = torch.tensor(row[:-1])
            targets[place, : len(row) - 1] = torch.tensor(row[1:])
        yield inputs, targets


def _rows_at_once(num_rows: int, row_tokens: int, batch_tokens: int) -> int:
    """Return the rows of a batch: as asked, and fewer of a short text, to know its error from several batches."""
    return max(1, min(batch_tokens // row_tokens, num_rows // FEWEST_BATCHES))
