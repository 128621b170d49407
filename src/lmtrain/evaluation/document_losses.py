"""The loss of each document, or piece of one, in rows of training. `G rows, T tokens, V vocabulary`."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from lmtrain.data.rows import RowBatch
from lmtrain.models.base import LanguageModel, in_evaluation_mode

TOKENS_AT_ONCE: Final = 8_192


@dataclass(frozen=True, kw_only=True)
class DocumentPiece:
    """The predicted ids of one document in a row; `nats` [num_tokens] are None without a model.

    `is_learned` [num_tokens] marks the tokens with loss.
    """

    row: int
    start: int
    ids: NDArray[np.int64]
    is_learned: NDArray[np.bool_]
    nats: NDArray[np.float64] | None = None

    @property
    def num_learned(self) -> int:
        """Count the tokens with loss."""
        return int(self.is_learned.sum())

    @property
    def mean_nats(self) -> float | None:
        """Return the loss of a token with loss, None without a model or without such a token."""
        return None if self.nats is None or not self.num_learned else float(self.nats[self.is_learned].mean())

    @property
    def worst(self) -> int:
        """Return the place of the least expected token with loss, 0 without a model."""
        if self.nats is None or not self.num_learned:
            return 0
        return int(np.where(self.is_learned, self.nats, -np.inf).argmax())


def document_pieces(rows: RowBatch, *, end_of_text_id: int, nats: NDArray[np.float64] | None) -> list[DocumentPiece]:
    """Cut rows [G, T + 1] into their documents: as the packing counts them, else at each end-of-text id."""
    ids = rows.ids.astype(np.int64)
    documents = np.cumsum(ids[:, :-1] == end_of_text_id, axis=1) if rows.documents is None else rows.documents
    learned = np.ones(documents.shape, np.bool_) if rows.loss_mask is None else rows.loss_mask
    pieces: list[DocumentPiece] = []
    for row, of_row in enumerate(documents):
        starts = [0, *(np.flatnonzero(np.diff(of_row)) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(of_row)], strict=True):
            of_piece = None if nats is None else nats[row, start:stop]
            targets, marks = ids[row, start + 1 : stop + 1], learned[row, start:stop]
            pieces.append(DocumentPiece(row=row, start=start, ids=targets, is_learned=marks, nats=of_piece))
    return pieces


def token_nats(model: LanguageModel, rows: RowBatch) -> NDArray[np.float64]:
    """Return the loss of each target in nats, [G, T], by the model's own forward pass, a few rows at once."""
    device = next(model.parameters()).device
    at_once = max(1, TOKENS_AT_ONCE // rows.ids.shape[1])
    found: list[NDArray[np.float64]] = []
    with in_evaluation_mode(model), torch.no_grad():
        for first in range(0, len(rows.ids), at_once):
            ids = torch.from_numpy(rows.ids[first : first + at_once].astype(np.int64)).to(device)
            some = None if rows.documents is None else rows.documents[first : first + at_once]
            documents = None if some is None else torch.from_numpy(some).to(device)
            logits = model.logits(model.hidden_states(ids[:, :-1], documents)).float()
            nats = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            found.append(nats.view(logits.shape[:2]).double().cpu().numpy())
    return np.concatenate(found)
