import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtrain.data.order import CorpusPosition, WindowOrder

TWO_BILLION = 2**31


def order(num_windows, seed=0, fingerprint="corpus"):
    return WindowOrder(num_windows=num_windows, seed=seed, fingerprint=fingerprint)


@pytest.mark.parametrize("num_windows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 101, 255, 256, 257, 1000, 7919])
def test_each_epoch_of_a_small_corpus_reads_every_window_once(num_windows):
    windows = order(num_windows)(np.arange(5 * num_windows)).reshape(5, num_windows)
    assert (np.sort(windows, axis=1) == np.arange(num_windows)).all()


@given(num_windows=st.integers(1, 3000), seed=st.integers(0, 2**63), fingerprint=st.text(), epoch=st.integers(0, 10**6))
def test_each_epoch_is_a_permutation(num_windows, seed, fingerprint, epoch):
    first = epoch * num_windows
    windows = order(num_windows, seed, fingerprint)(np.arange(first, first + num_windows))
    assert sorted(windows.tolist()) == list(range(num_windows))


@given(num_windows=st.integers(TWO_BILLION - 3, TWO_BILLION + 3), positions=st.sets(st.integers(0, TWO_BILLION - 4)))
def test_no_two_of_two_billion_positions_share_a_window(num_windows, positions):
    windows = order(num_windows)(np.array(sorted(positions), dtype=np.int64))
    assert len(set(windows.tolist())) == len(positions)
    assert all(0 <= window < num_windows for window in windows.tolist())


def test_a_dense_stretch_of_two_billion_has_no_window_twice():
    windows = order(TWO_BILLION + 1)(np.arange(200_000))
    assert len(np.unique(windows)) == 200_000
    # Spread over the whole corpus, not a neighbourhood: 200,000 uniform draws fall in each sixteenth within 2 %.
    counts = np.bincount(windows * 16 // (TWO_BILLION + 1), minlength=16)
    assert counts.min() > 12_500 * 0.96
    assert counts.max() < 12_500 * 1.04


def test_epochs_differ():
    windows = order(1000)(np.arange(3000)).reshape(3, 1000)
    assert (windows[0] != windows[1]).sum() > 900
    assert (windows[1] != windows[2]).sum() > 900


@pytest.mark.parametrize("other", [{"seed": 1}, {"fingerprint": "another corpus"}])
def test_seed_and_fingerprint_each_change_the_order(other):
    positions = np.arange(1000)
    assert (order(1000)(positions) == order(1000)(positions)).all()
    assert (order(1000, **other)(positions) != order(1000)(positions)).mean() > 0.9


@pytest.mark.parametrize("num_windows", [2, 3, 5, 8])
def test_every_window_is_first_equally_often(num_windows):
    num_epochs = 8000
    first = order(num_windows)(np.arange(num_epochs) * num_windows)
    expected = num_epochs / num_windows
    # Five standard deviations of a binomial count.
    assert abs(np.bincount(first, minlength=num_windows) - expected).max() < 5 * expected**0.5


@settings(max_examples=30)
@given(st.integers(1, 10**6), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_one_position_says_the_same_as_many(num_windows, positions):
    windows = order(num_windows)(np.array(positions, dtype=np.int64))
    for position, window in zip(positions, windows.tolist(), strict=True):
        assert order(num_windows).position(position) == CorpusPosition(epoch=position // num_windows, window=window)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_rank_slices_partition_a_step(num_ranks):
    step = np.arange(48, 96)
    slices = [order(10_000)(part) for part in np.split(step, num_ranks)]
    assert np.concatenate(slices).tolist() == order(10_000)(step).tolist()


@given(
    num_windows=st.integers(1, TWO_BILLION + 1),
    step=st.integers(0, 10**6),
    num_ranks=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]),
)
def test_rank_slices_partition_any_step_of_any_corpus(num_windows, step, num_ranks):
    positions = np.arange(24 * step, 24 * (step + 1))
    slices = [order(num_windows)(part) for part in np.split(positions, num_ranks)]
    assert np.concatenate(slices).tolist() == order(num_windows)(positions).tolist()


def test_two_billion_windows_start_at_once():
    started = time.process_time()
    order(TWO_BILLION + 1)(np.arange(8))
    assert time.process_time() - started < 0.05


def test_the_order_is_what_it_always_was():
    # Golden: a run that resumes after an upgrade must go on in the same order.
    assert order(1000, seed=1337)(np.arange(6)).tolist() == [4, 334, 602, 542, 423, 850]
    assert order(TWO_BILLION, seed=1337)(np.arange(3) + 5 * TWO_BILLION).tolist() == [1735195854, 487172396, 281358285]


def test_a_huge_corpus_needs_no_memory():
    tracemalloc.start()
    try:
        assert 0 <= order(15_000_000_000_000 // 2048).position(123_456_789_012).window < 7_324_218_750
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_order_ignores_the_hash_seed():
    code = (
        "import numpy as np; from lmtrain.data.order import WindowOrder;"
        "print(WindowOrder(num_windows=999, seed=5, fingerprint='x')(np.arange(50)).tolist())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "7")
    }  # fmt: skip
    assert len(printed) == 1


def test_an_empty_question_gets_an_empty_answer():
    assert order(10)(np.array([], dtype=np.int64)).tolist() == []
