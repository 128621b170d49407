"""A reference's log-probabilities of the training rows, computed once with the run's starting weights.

No second model is in memory while it trains. They are kept in the run's folder: a run that goes on reads them, and
computes those of more rows with the starting weights, which are in the model before its checkpoint is read.
"""

import hashlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from lmtrain.data.rows import RowBatch, Rows
from lmtrain.errors import DataError
from lmtrain.losses.log_probs import SequenceLogProbs
from lmtrain.models.base import LanguageModel
from lmtrain.models.head import LossTotal
from lmtrain.parallel.gradients import reshard
from lmtrain.storage.durable import open_durably
from lmtrain.training.token_batch import TokenBatch, to_batch, training_tokens

LOG_PROBS: Final = SequenceLogProbs()


@dataclass(frozen=True, kw_only=True)
class ScoringRank:
    """A rank among those at work, its device, and the context of its forward passes."""

    rank: int
    num_ranks: int
    device: torch.device
    forward_context: AbstractContextManager[Any]


@final
class ReferenceScores:
    """Log-probabilities of rows, NaN where not computed; `rows_together` rows of an example begin with one prompt."""

    def __init__(
        self, rows: Rows, needed: NDArray[np.int64], *, folder: Path, key: str, rows_together: int, batch_rows: int
    ) -> None:
        """Plan for the `needed` rows, `batch_rows` a forward pass; `key` names the starting weights."""
        named = hashlib.sha256(f"{key}:{rows.fingerprint}".encode()).hexdigest()[:12]
        self._rows, self._together, self._batch_rows = rows, rows_together, batch_rows
        self._needed = np.unique(needed // rows_together)  # examples
        self.file = folder / f"reference_{named}.npy"
        self.values = np.full(rows.num_rows, np.nan, np.float32)

    def beside(self, rows: Rows) -> Rows:
        """Return the rows with their values."""
        return _Referenced(rows, self.values)

    def complete(self, model: LanguageModel, place: ScoringRank) -> int:
        """Read the known values, compute the others of the needed rows and keep all; return how many were computed.

        Raises:
            DataError: Rows of one example have different prompts.
        """
        if self.file.is_file():
            self.values[:] = np.load(self.file)
        self._share_first()
        missing = self._needed[np.isnan(self.values[self._needed * self._together])]
        if not missing.size:
            return 0
        rows = (missing[:, None] * self._together + np.arange(self._together)).reshape(-1)
        self.values[rows] = self._scored(model, rows, place)
        if place.rank == 0:
            with open_durably(self.file) as file:
                np.save(file, self.values)
        return len(rows)

    def _share_first(self) -> None:
        """Take the first rank's values on every rank: another may see an older file."""
        if distributed.is_available() and distributed.is_initialized():
            held = [self.values]
            distributed.broadcast_object_list(held)
            self.values[:] = held[0]

    def _scored(self, model: LanguageModel, rows: NDArray[np.int64], place: ScoringRank) -> NDArray[np.float32]:
        """Score rows [N], each rank its batches, all as many; the last batch is filled up with its last row."""
        size = self._batch_rows
        num_batches = -(-len(rows) // (size * place.num_ranks)) * place.num_ranks
        filled = np.concatenate([rows, np.full(num_batches * size - len(rows), rows[-1])]).reshape(num_batches, size)
        scores = torch.zeros(num_batches, size, device=place.device)
        is_training = model.training
        model.eval()
        with torch.no_grad(), place.forward_context, torch.compiler.set_stance("force_eager"):
            for index in range(place.rank, num_batches, place.num_ranks):
                scores[index] = self._score(model, filled[index], place.device)
        model.train(is_training)
        reshard(model)
        if place.num_ranks > 1:
            distributed.all_reduce(scores)
        return scores.flatten()[: len(rows)].cpu().numpy()

    def _score(self, model: LanguageModel, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        read = to_batch(self._rows.read(rows))
        batch = TokenBatch(read) if isinstance(read, Tensor) else read
        require_pairs(batch, rows, rows_together=self._together)
        inputs, targets, documents = training_tokens(
            TokenBatch(*(None if part is None else part.to(device) for part in batch))  # pyright: ignore[reportArgumentType]
        )
        total: LossTotal = model(inputs, targets, LOG_PROBS, documents)
        return total.objective.float()


def require_pairs(batch: TokenBatch, rows: NDArray[np.int64], *, rows_together: int) -> None:
    """Refuse rows of other data: the tokens before the first one with loss are an example's prompt."""
    if batch.loss_mask is None:
        raise DataError("preferences are of pairs of answers, and this data is text; take source=preference_pairs.")
    for first in range(0, len(rows) - 1, rows_together):
        masks = batch.loss_mask[first : first + rows_together]
        lengths = {int(mask.int().argmax()) + 1 if mask.any() else -1 for mask in masks} - {-1}
        prompts = {tuple(ids[: min(lengths)].tolist()) for ids in batch.ids[first : first + rows_together] if lengths}
        if len(lengths) > 1 or len(prompts) > 1:
            raise DataError(
                f"rows {rows[first]} and {rows[first] + 1} are not a pair: their prompts differ; take "
                "source=preference_pairs."
            )


@final
class _Referenced:
    def __init__(self, rows: Rows, values: NDArray[np.float32]) -> None:
        self._rows, self._values = rows, values
        self.num_rows, self.fingerprint = rows.num_rows, rows.fingerprint

    def read(self, rows: NDArray[np.int64]) -> RowBatch:
        """Read the rows with their values."""
        return self._rows.read(rows)._replace(reference=self._values[rows])
