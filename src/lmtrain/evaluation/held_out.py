"""Bits per byte of any text, or of a split of prepared data, with its standard error. B batch, T tokens."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from lmtrain.data.windows import IGNORED, HeldOutWindows
from lmtrain.errors import DataError
from lmtrain.evaluation.bits_per_byte import BitsPerByte, sums_of_batches
from lmtrain.evaluation.scored_rows import NOT_A_NUMBER
from lmtrain.models.base import LanguageModel
from lmtrain.models.loss import Loss

FEWEST_BATCHES: Final = 16


@dataclass(frozen=True, kw_only=True)
class TextScore(BitsPerByte):
    """The sums over a text, and the standard error of its bits per byte; None for a single batch."""

    standard_error: float | None


def score_held_out(
    model: LanguageModel, batches: Iterable[tuple[Tensor, ...]], *, token_bytes: Tensor, loss: Loss
) -> TextScore:
    """Score batches as `evaluate` does, on this process alone.

    The error is for a ratio of sums over batches: the differences of their nats from the mean rate by their bytes.

    Raises:
        DataError: The targets have no bytes, or the model's scores are not numbers.
    """
    by_batch = list(sums_of_batches(model, batches, token_bytes=token_bytes, loss=loss))
    if not by_batch:
        raise DataError("the text is empty; it needs at least one byte.")
    sums = torch.stack(by_batch).cpu()  # [n, 3]
    nats, num_bytes, num_tokens = sums.sum(0).tolist()
    if not num_bytes:
        raise DataError(f"the text has {num_tokens:.0f} targets and 0 bytes; it needs at least one byte.")
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
