"""Held against best-fit decreasing as its textbook writes it, one item at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.data.best_fit import best_fit_decreasing


def one_at_a_time(lengths, capacity):
    """Return how full each bin is, in the order of opening."""
    filled = []
    for length in sorted(lengths, reverse=True):
        fitting = [(capacity - level, index) for index, level in enumerate(filled) if capacity - level >= length]
        if fitting:
            filled[min(fitting)[1]] += length
        else:
            filled.append(length)
    return filled


@given(st.data())
def test_bins_are_filled_as_by_the_textbook(data):
    capacity = data.draw(st.integers(1, 50))
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=80))
    bins = best_fit_decreasing(np.array(lengths, dtype=np.int64), capacity=capacity)
    filled = np.bincount(bins, weights=lengths).tolist() if lengths else []
    assert sorted(filled) == sorted(one_at_a_time(lengths, capacity))
    assert sorted(set(bins.tolist())) == list(range(len(filled))), "no number is left out"


def test_items_of_one_length_are_placed_in_the_order_in_which_they_come():
    assert best_fit_decreasing(np.array([3, 3, 3, 2, 2]), capacity=5).tolist() == [0, 1, 2, 0, 1]
    assert best_fit_decreasing(np.array([2, 2, 2, 2, 2]), capacity=5).tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("capacity", [256, 2048, 70_000])
def test_many_documents_leave_next_to_nothing_empty(capacity):
    lengths = np.random.default_rng(0).integers(1, 201, size=50_000)
    bins = best_fit_decreasing(lengths, capacity=capacity)
    filled = np.bincount(bins, weights=lengths)
    assert filled.max() <= capacity
    assert 1 - filled.sum() / (len(filled) * capacity) < 0.005 + capacity / lengths.sum()


def test_nothing_needs_no_bin():
    assert best_fit_decreasing(np.array([], dtype=np.int64), capacity=8).tolist() == []
