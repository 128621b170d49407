"""A loader's batch where ids alone do not say everything. `B sequences, T context tokens`."""

from typing import NamedTuple

import torch
from torch import Tensor

from lmtrain.data.rows import RowBatch
from lmtrain.models.base import IGNORED


class TokenBatch(NamedTuple):
    """Ids [B, T + 1] in the shards' type, int32 documents [B, T] of the inputs, bool loss mask [B, T] of the targets.

    fp32 `reference` [B] are log-probabilities of the sequences by the model that a preference is compared with.

    None where a row is one document, and where every target carries loss.
    """

    ids: Tensor
    documents: Tensor | None = None
    loss_mask: Tensor | None = None
    reference: Tensor | None = None


class TrainingTokens(NamedTuple):
    """A model's training input: int64 inputs and targets [B, T], targets without loss -100, documents or None."""

    inputs: Tensor
    targets: Tensor
    documents: Tensor | None


def to_batch(rows: RowBatch) -> Tensor | TokenBatch:
    """Wrap rows as tensors without a copy: ids alone where they say everything."""
    ids = torch.from_numpy(rows.ids)
    if rows.documents is None and rows.loss_mask is None and rows.reference is None:
        return ids
    return TokenBatch(
        ids,
        None if rows.documents is None else torch.from_numpy(rows.documents),
        None if rows.loss_mask is None else torch.from_numpy(rows.loss_mask),
        None if rows.reference is None else torch.from_numpy(rows.reference),
    )


def training_tokens(batch: Tensor | TokenBatch) -> TrainingTokens:
    """Widen ids on the device they are on, and part them into inputs and targets."""
    if isinstance(batch, Tensor):
        batch = TokenBatch(batch)
    tokens = batch.ids.long()
    targets = tokens[:, 1:]
    if batch.loss_mask is not None:
        targets = targets.masked_fill(~batch.loss_mask, IGNORED)
    return TrainingTokens(tokens[:, :-1], targets, batch.documents)
