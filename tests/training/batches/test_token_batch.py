import numpy as np
import torch

from lmtrain.data.rows import RowBatch
from lmtrain.training.token_batch import TokenBatch, to_batch, training_tokens

IDS = np.array([[5, 6, 7, 60_000]], np.uint16)


def test_ids_that_say_everything_travel_alone_and_narrow():
    batch = to_batch(RowBatch(IDS))
    assert isinstance(batch, torch.Tensor)
    assert batch.dtype == torch.uint16
    inputs, targets, documents = training_tokens(batch)
    assert inputs.dtype == targets.dtype == torch.int64
    assert (inputs.tolist(), targets.tolist(), documents) == ([[5, 6, 7]], [[6, 7, 60_000]], None)


def test_wide_ids_stay_exact():
    ids = np.array([[2**32 - 1, 0]], np.uint32)
    assert training_tokens(to_batch(RowBatch(ids))).inputs.tolist() == [[2**32 - 1]]


def test_targets_without_loss_are_left_out():
    mask = np.array([[True, False, True]])
    batch = to_batch(RowBatch(IDS, None, mask))
    assert isinstance(batch, TokenBatch)
    assert training_tokens(batch).targets.tolist() == [[6, -100, 60_000]]
