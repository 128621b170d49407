from contextlib import nullcontext

import numpy as np
import pytest
import torch

from lmtrain.data.rows import RowBatch, read_rows
from lmtrain.errors import DataError
from lmtrain.training.objectives.reference import LOG_PROBS, ReferenceScores, ScoringRank
from lmtrain.training.token_batch import to_batch, training_tokens
from tests.adapters.test_low_rank import small

PLACE = ScoringRank(rank=0, num_ranks=1, device=torch.device("cpu"), forward_context=nullcontext())


class PairRows:
    """Rows in memory: both of a pair begin with its number, and their loss is on the last two of six targets."""

    fingerprint = "rows"

    def __init__(self, num_rows: int = 8, *, prompts_differ: bool = False) -> None:
        self.num_rows = num_rows
        self.ids = np.random.default_rng(0).integers(0, 250, (num_rows, 7)).astype(np.uint16)
        if not prompts_differ:
            self.ids[:, :5] = np.arange(num_rows)[:, None] // 2

    def locate(self, rows):
        ids = self.ids[rows]
        mask = np.broadcast_to(np.arange(6) >= 4, (len(rows), 6)).copy()

        class Located:
            def read(self, first, last):
                return RowBatch(ids[first:last], None, mask[first:last])

        return Located()


def scores_of(rows, needed, folder) -> ReferenceScores:
    return ReferenceScores(rows, np.array(needed), folder=folder, key="base", rows_together=2, batch_rows=4)


def test_needed_pairs_are_scored_once_and_more_of_them_later(tmp_path) -> None:
    rows, model = PairRows(), small()
    first = scores_of(rows, [0, 5], tmp_path)
    assert first.complete(model, PLACE) == 4
    assert np.isfinite(first.values).tolist() == [True, True, False, False, True, True, False, False]
    batch = to_batch(read_rows(rows, np.array([4, 5])))
    inputs, targets, documents = training_tokens(batch)
    expected = model(inputs, targets, LOG_PROBS, documents).objective.detach().numpy()
    np.testing.assert_allclose(first.values[4:6], expected, rtol=1e-6)
    read = read_rows(first.beside(rows), np.array([5, 4]))
    np.testing.assert_array_equal(read.reference, first.values[[5, 4]])
    again = scores_of(rows, range(8), tmp_path)
    assert again.complete(small(), PLACE) == 4
    assert scores_of(rows, range(8), tmp_path).complete(small(), PLACE) == 0
    np.testing.assert_array_equal(again.values[:2], first.values[:2])


def test_rows_with_different_prompts_are_no_pair(tmp_path) -> None:
    with pytest.raises(DataError, match=r"rows 0 and 1 are not a pair"):
        scores_of(PairRows(prompts_differ=True), range(8), tmp_path).complete(small(), PLACE)
