"""Batches from a person's own rows of token ids, without a prepared folder. B sequences, T tokens."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from lmtrain.data.order import WindowOrder
from lmtrain.errors import ConfigurationError, DataError


class RowsDataModule(pl.LightningDataModule):
    """Serve int64 ids [B, T + 1] from rows of T + 1 ids each: lists, arrays or tensors, all of one length.

    A sequence of rows is read in a shuffled order of the seed, another one each time through; any other iterable in its
    own order, again from its start when it ends. The batches never end. Training resumed at a step goes on with the
    rows of that step, on any number of ranks.

    Example:
        >>> data = RowsDataModule(list_of_lists_of_ids, micro_batch_sequences=8)
        >>> lightning.Trainer(max_steps=100, use_distributed_sampler=False).fit(module, datamodule=data)
    """

    def __init__(self, rows: Iterable[Any], *, micro_batch_sequences: int = 8, seed: int = 0) -> None:
        """Hold the rows."""
        super().__init__()
        if micro_batch_sequences < 1:
            raise ConfigurationError(f"micro_batch_sequences must be at least 1, got {micro_batch_sequences}.")
        if isinstance(rows, Iterator):
            raise ConfigurationError("rows must be readable more than once, got an iterator; pass a list.")
        self._rows, self._batch_rows, self._seed = rows, micro_batch_sequences, seed

    def train_dataloader(self) -> Iterable[Tensor]:
        """Return an endless loader that starts at the Trainer's step."""
        assert self.trainer is not None
        ranks, micro_steps = self.trainer.world_size, self.trainer.accumulate_grad_batches
        first = self.trainer.global_step * micro_steps * ranks
        return _Batches(self._endless, size=self._batch_rows, first=first + self.trainer.global_rank, stride=ranks)

    def _endless(self) -> Iterator[Any]:
        if not isinstance(self._rows, Sequence) and not hasattr(self._rows, "__getitem__"):
            while True:
                yield from _not_empty(self._rows)
        rows = cast("Sequence[Any]", self._rows)
        _not_empty(rows)
        order = WindowOrder(num_windows=len(rows), seed=self._seed, fingerprint="rows")
        position = 0
        while True:
            for index in order(np.arange(position, position + len(rows))).tolist():
                yield rows[index]
            position += len(rows)


class _Batches:
    """Every `stride`-th batch of rows, from number `first` on."""

    def __init__(self, rows: Any, *, size: int, first: int, stride: int) -> None:
        self._rows, self._size, self._first, self._stride = rows, size, first, stride

    def __iter__(self) -> Iterator[Tensor]:
        rows = islice(self._rows(), self._first * self._size, None)
        while True:
            batch = [torch.as_tensor(row, dtype=torch.int64) for row in islice(rows, self._size)]
            if len({one.shape for one in batch}) != 1 or batch[0].ndim != 1:
                shapes = sorted({tuple(one.shape) for one in batch})
                raise DataError(f"rows must be ids of one length, got shapes {shapes}.")
            yield torch.stack(batch)
            next(islice(rows, (self._stride - 1) * self._size, (self._stride - 1) * self._size), None)


def _not_empty(rows: Iterable[Any]) -> Iterable[Any]:
    if next(iter(rows), None) is None:
        raise DataError("rows must hold at least one row, got none.")
    return rows
