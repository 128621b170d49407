"""The micro-batches of one rank, from a step on, without end: pure functions of the step.

Step s takes positions [s x G, (s + 1) x G) of the run's order, G sequences a step, and each rank its contiguous slice;
micro-batches follow one another inside the slice. Steps pass over batches left out. `B micro-batch sequences`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from lmtrain.accounting.batches import BatchPlan
from lmtrain.data.rows import Rows
from lmtrain.training.lifetime import die_with_loader
from lmtrain.training.token_batch import TokenBatch, to_batch

# The order is worked out for this many micro-batches at once, since one costs nearly as much as hundreds.
CHUNK_BATCHES = 256
# A thread reads so many micro-batches ahead at once, since each handing over costs a switch between threads: no step
# waits for a page of a file, or for the milliseconds that a chunk takes.
GROUP_BATCHES = 32
GROUP_BYTES = 8_000_000
Order = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def positions_of_steps(batch: BatchPlan, steps: range, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of steps in the run's order, of each the sequences at `places` [P]: [S P]."""
    numbers = np.array([batch.number_of(step) for step in steps])
    return (numbers[:, None] * batch.sequences_per_step + places).reshape(-1)


@final
class RankRows:
    """The rows of each micro-batch of one rank, [B] each, from a step on."""

    def __init__(self, order: Order, *, batch: BatchPlan, rank: int, start_step: int) -> None:
        """Start at the first micro-batch of `start_step` (from 0)."""
        self._order = order
        self._batch = batch
        self._rank = rank
        self._start_step = start_step

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """Yield one micro-batch's rows after another."""
        batch, step = self._batch, self._start_step
        num_steps = -(-CHUNK_BATCHES // batch.accumulation_micro_steps)
        mine = self._rank * batch.sequences_per_rank + np.arange(batch.sequences_per_rank)
        while True:
            positions = positions_of_steps(batch, range(step, step + num_steps), mine)
            yield from self._order(positions).reshape(-1, batch.sequences_per_micro_step)
            step += num_steps


@final
class TrainingBatches:
    """Read micro-batches ahead on a thread of this process, into pinned memory where a GPU waits for them."""

    def __init__(self, rows: Rows, rank_rows: RankRows) -> None:
        self._rows = rows
        self._rank_rows = rank_rows

    def __iter__(self) -> Iterator[Tensor | TokenBatch]:
        """Yield ids [B, T + 1], or a TokenBatch."""
        groups = self._groups()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="rows ahead") as executor:
            ahead = executor.submit(next, groups)
            while True:
                group = ahead.result()
                ahead = executor.submit(next, groups)
                while group:
                    yield group.popleft()

    def _groups(self) -> Iterator[deque[Tensor | TokenBatch]]:
        """Yield as many micro-batches as are read at once; the first alone, for the first step to wait for no more."""
        pin = torch.cuda.is_available()
        group, num_bytes, most = deque[Tensor | TokenBatch](), 0, 1
        for numbers in self._rank_rows:
            batch = to_batch(self._rows.read(numbers))
            group.append(_pinned(batch) if pin else batch)
            num_bytes += _num_bytes(batch)
            if len(group) == most or num_bytes >= GROUP_BYTES:
                yield group
                group, num_bytes, most = deque[Tensor | TokenBatch](), 0, GROUP_BATCHES


@final
class RowDataset(TorchDataset[Tensor]):
    """Rows for a DataLoader's processes, a micro-batch at a time."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __getitems__(self, rows: NDArray[np.int64]) -> Tensor | TokenBatch:
        """Return these rows as one batch."""
        return to_batch(self._rows.read(rows))


def worker_loader(rows: Rows, rank_rows: RankRows, *, num_workers: int) -> "DataLoader[Tensor]":
    """Read micro-batches in processes of their own."""
    return DataLoader(
        RowDataset(rows),
        batch_sampler=rank_rows,  # pyright: ignore[reportArgumentType]  # an array of rows instead of a list
        collate_fn=_unchanged,  # rows come as a batch already
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=die_with_loader,
    )


def _unchanged(batch: Any) -> Any:
    return batch


def _num_bytes(batch: Tensor | TokenBatch) -> int:
    return sum(part.nbytes for part in ([batch] if isinstance(batch, Tensor) else batch) if part is not None)


def _pinned(batch: Tensor | TokenBatch) -> Tensor | TokenBatch:
    if isinstance(batch, Tensor):
        return batch.pin_memory()
    ids, *others = batch
    return TokenBatch(ids.pin_memory(), *(None if part is None else part.pin_memory() for part in others))


@final
@dataclass(frozen=True, kw_only=True)
class Examples:
    """An example is `rows_together` neighbouring rows, or `copies` of one; the same rows serve `num_uses` steps."""

    rows_together: int = 1
    copies: int = 1
    num_uses: int = 1

    def ordered(self, order: Order, *, rows_per_step: int) -> Order:
        """Return the rows at positions, from the `order` of examples."""
        if self == Examples():
            return order

        def rows_at(positions: NDArray[np.int64]) -> NDArray[np.int64]:
            if self.num_uses > 1:
                steps, places = np.divmod(positions, rows_per_step)
                positions = steps // self.num_uses * rows_per_step + places
            places = positions // self.copies
            together = self.rows_together
            return order(places // together) * together + places % together

        return rows_at
