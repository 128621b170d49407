"""Micro-batches of a rank, and what a batch holds."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.batches import BatchPlan
from lmtrain.data.packing import BestFit, Contiguous
from lmtrain.data.rows import RowBatch
from lmtrain.training import training_batches
from lmtrain.training.token_batch import TokenBatch, to_batch, training_tokens
from lmtrain.training.training_batches import Examples, RankRows, TrainingBatches, worker_loader
from tests.data.documents import make_dataset

IDS = np.array([[5, 6, 7, 60_000]], np.uint16)


def test_targets_without_loss_are_left_out():
    mask = np.array([[True, False, True]])
    batch = to_batch(RowBatch(IDS, None, mask))
    assert isinstance(batch, TokenBatch)
    assert training_tokens(batch).targets.tolist() == [[6, -100, 60_000]]


def backwards(at):
    return 9 - at


def test_pairs_stay_together_in_the_order_of_pairs() -> None:
    rows = Examples(rows_together=2).ordered(backwards, rows_per_step=4)(np.arange(4))
    assert rows.tolist() == [18, 19, 16, 17]


def test_a_row_comes_in_copies_and_again_in_the_next_step() -> None:
    rows = Examples(copies=2, num_uses=2).ordered(backwards, rows_per_step=4)(np.arange(12))
    assert rows.tolist() == [9, 9, 8, 8, 9, 9, 8, 8, 7, 7, 6, 6]


def plan(num_ranks=1, micro_batch_sequences=2, accumulation_micro_steps=3):
    return BatchPlan(
        context_tokens=8,
        sequences_per_micro_step=micro_batch_sequences,
        accumulation_micro_steps=accumulation_micro_steps,
        num_ranks=num_ranks,
    )


@given(
    num_ranks=st.integers(1, 5),
    micro_batch_sequences=st.integers(1, 4),
    accumulation_micro_steps=st.integers(1, 5),
    start_step=st.integers(0, 10**9),
    chunk_batches=st.integers(1, 20),
)
def test_the_ranks_micro_batches_are_the_positions_of_each_step(
    num_ranks, micro_batch_sequences, accumulation_micro_steps, start_step, chunk_batches
):
    batch = plan(num_ranks, micro_batch_sequences, accumulation_micro_steps)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training_batches, "CHUNK_BATCHES", chunk_batches)
        ranks = [RankRows(lambda p: p, batch=batch, rank=rank, start_step=start_step) for rank in range(num_ranks)]
        steps = [np.array(list(islice(rank, 7 * accumulation_micro_steps))) for rank in ranks]
    joined = np.stack([rows.reshape(7, -1) for rows in steps], axis=1).reshape(-1)
    first = start_step * batch.sequences_per_step
    assert joined.tolist() == list(range(first, first + 7 * batch.sequences_per_step))


@pytest.mark.parametrize("packing", [Contiguous(), Contiguous(document_mask=True), BestFit(document_mask=True)])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_processes_of_a_loader_change_nothing(tmp_path, packing, num_workers):
    rows = packing.rows(make_dataset(tmp_path, [3, 9, 30, 1, 12] * 9, shard_tokens=100), context_tokens=8)

    def start():
        return RankRows(lambda p: p % rows.num_rows, batch=plan(), rank=0, start_step=2)

    loader = worker_loader(rows, start(), num_workers=num_workers) if num_workers else TrainingBatches(rows, start())
    for batch, wanted in zip(loader, islice(start(), 7), strict=False):
        expected = rows.read(wanted)
        parts = TokenBatch(batch) if isinstance(batch, torch.Tensor) else batch
        assert isinstance(batch, torch.Tensor) == (packing == Contiguous())
        for part, array in zip(parts, expected, strict=True):
            assert (part is None) == (array is None)
            assert part is None or (part.numpy() == array).all()


def test_what_goes_wrong_while_reading_ahead_is_raised_where_the_batch_is_wanted():
    class Broken:
        def read(self, rows):
            raise OSError("the disk is gone")

    batches = iter(TrainingBatches(Broken(), RankRows(lambda p: p % 100, batch=plan(), rank=0, start_step=0)))
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
