"""Windows of a prepared data set as batches: a pure function of the step, so resume needs no loader state.

Step s takes windows [s x G, (s + 1) x G) of the run's order, G sequences a step, and each rank its contiguous slice;
micro-batches follow one another inside the slice. `B micro-batch sequences, T context tokens`.
"""

import ctypes
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from lmtrain.accounting.batches import BatchPlan
from lmtrain.data.order import WindowOrder
from lmtrain.data.shards import Dataset, TokenSplit, open_dataset
from lmtrain.data.windows import evaluation_windows, num_training_windows, training_windows


class TokenDataModule(pl.LightningDataModule):
    """Serve training batches [B, T + 1] and held-out batches from a prepared folder."""

    def __init__(self, *, folder: Path, batch: BatchPlan, seed: int, num_workers: int = 0) -> None:
        """Hold the folder; `num_workers` counts loader processes a rank (0 loads in the training process)."""
        super().__init__()
        self.dataset: Dataset = open_dataset(Path(folder))
        self._batch = batch
        self._seed = seed
        self._num_workers = num_workers

    def train_dataloader(self) -> DataLoader[Any]:
        """Return an endless loader that starts at the Trainer's step."""
        assert self.trainer is not None
        split = self.dataset.split("train")
        order = WindowOrder(
            num_windows=num_training_windows(split.num_tokens, self._batch.context_tokens),
            seed=self._seed,
            fingerprint=self.dataset.manifest.fingerprint,
        )
        rank_batches = RankBatches(
            batch=self._batch, rank=self.trainer.global_rank, start_step=self.trainer.global_step
        )
        return DataLoader(
            OrderedWindows(split=split, order=order, context_tokens=self._batch.context_tokens),
            batch_sampler=rank_batches,
            collate_fn=torch.from_numpy,
            num_workers=self._num_workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=die_with_parent,
        )

    def held_out_batches(self, split: str, *, max_tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's (inputs, targets), both [B, T] int64, so that each token but the first is predicted once.

        Every rank yields the same number of batches; targets beyond the end are -100. `max_tokens` None reads all.
        """
        assert self.trainer is not None
        windows = evaluation_windows(
            self.dataset.split(split), context_tokens=self._batch.context_tokens, max_tokens=max_tokens
        )
        num_sequences = min(self._batch.micro_batch_sequences, max(1, windows.num_windows))
        num_ranks = self._batch.num_ranks
        stride = num_sequences * num_ranks
        for start in range(0, windows.num_windows, stride):
            first = start + self.trainer.global_rank * num_sequences
            rows = [windows.window(first + row) for row in range(num_sequences)]
            inputs = torch.from_numpy(np.stack([row[0] for row in rows]))
            targets = torch.from_numpy(np.stack([row[1] for row in rows]))
            yield inputs, targets


class OrderedWindows(TorchDataset[np.ndarray]):
    """Window i of the run's order, for batches of i at once."""

    def __init__(self, *, split: TokenSplit, order: WindowOrder, context_tokens: int) -> None:
        """Read windows of `context_tokens` + 1 ids from one split."""
        self._split = split
        self._order = order
        self._context_tokens = context_tokens

    def __getitem__(self, position: int) -> np.ndarray:
        """Return one window [T + 1]."""
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: list[int]) -> np.ndarray:
        """Return the windows at these positions of the order: [B, T + 1] of the shards' own integer type."""
        windows = self._order(np.asarray(positions, dtype=np.int64))
        return training_windows(self._split, windows, self._context_tokens)


class RankBatches:
    """The positions in the run's order of each micro-batch of one rank, from a step on, without end."""

    def __init__(self, *, batch: BatchPlan, rank: int, start_step: int) -> None:
        """Start at the first micro-batch of `start_step` (from 0)."""
        self._batch = batch
        self._rank = rank
        self._start_step = start_step

    def __iter__(self) -> Iterator[list[int]]:
        """Yield one micro-batch's positions after another."""
        batch, step = self._batch, self._start_step
        while True:
            first = step * batch.sequences_per_step + self._rank * batch.sequences_per_rank
            for micro_step in range(batch.accumulation_micro_steps):
                start = first + micro_step * batch.micro_batch_sequences
                yield list(range(start, start + batch.micro_batch_sequences))
            step += 1


def die_with_parent(worker: int) -> None:
    """Ask Linux to kill this loader process when its trainer dies, so that kill -9 leaves no orphan."""
    del worker
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>
    try:
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    except (AttributeError, OSError):
        return  # not Linux: the loader's own watchdog thread ends it within seconds
