"""Batches on the device, the next one already on its way: its copy runs beside the device's work.

Lightning copies a batch at the start of its step, on the computing stream, and the step waits for the copy.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import final

import torch
from torch import Tensor

from lmtrain.training.batches.token_batch import TokenBatch
from lmtrain.training.side_stream import PendingCopies, SideStream

Batch = Tensor | TokenBatch


@final
class BatchesAhead:
    """Read batches from pinned memory, and copy each to the device before the one in front of it is used."""

    def __init__(self, batches: Iterable[Batch], *, device: torch.device, side: SideStream) -> None:
        self._batches = batches
        self._device = device
        self._side = side

    def __iter__(self) -> Iterator[Batch]:
        """Yield ids [B, T + 1], or a TokenBatch, in the shards' type: the model widens them on the device."""
        coming: PendingCopies[Batch] | None = None
        for batch in self._batches:
            copies = self._side.start(partial(_to_device, batch, self._device), of_computed=False)
            if coming is not None:
                yield _arrived(coming)
            coming = copies
        if coming is not None:
            yield _arrived(coming)


def _to_device(batch: Batch, device: torch.device) -> Batch:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    ids, *others = batch
    parts = (None if part is None else part.to(device, non_blocking=True) for part in others)
    return TokenBatch(ids.to(device, non_blocking=True), *parts)


def _arrived(copies: PendingCopies[Batch]) -> Batch:
    """Return a batch, safe to read on the device once its copy is done; the host does not wait."""
    parts = [copies.result] if isinstance(copies.result, Tensor) else copies.result
    copies.end.hold_compute(*(part for part in parts if part is not None))
    return copies.result
