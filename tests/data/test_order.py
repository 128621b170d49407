"""The order of windows and of the sources of a mixture."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.data.interleave import (
    Interleave,
    ScheduledInterleave,
    phases_going_on,
)
from lmtrain.data.order import WindowOrder

TWO_BILLION = 2**31


def order(num_windows, seed=0, fingerprint="corpus"):
    return WindowOrder(num_windows=num_windows, seed=seed, fingerprint=fingerprint)


@given(num_windows=st.integers(1, 3000), seed=st.integers(0, 2**63), fingerprint=st.text(), epoch=st.integers(0, 10**6))
def test_each_epoch_is_a_permutation(num_windows, seed, fingerprint, epoch):
    first = epoch * num_windows
    windows = order(num_windows, seed, fingerprint)(np.arange(first, first + num_windows))
    assert sorted(windows.tolist()) == list(range(num_windows))


@pytest.mark.parametrize("other", [{"seed": 1}, {"fingerprint": "another corpus"}])
def test_seed_and_fingerprint_each_change_the_order(other):
    positions = np.arange(1000)
    assert (order(1000)(positions) == order(1000)(positions)).all()
    assert (order(1000, **other)(positions) != order(1000)(positions)).mean() > 0.9


def test_the_order_is_what_it_always_was():
    # Golden: a run that resumes after an upgrade must go on in the same order.
    assert order(1000, seed=1337)(np.arange(6)).tolist() == [4, 334, 602, 542, 423, 850]
    assert order(TWO_BILLION, seed=1337)(np.arange(3) + 5 * TWO_BILLION).tolist() == [1735195854, 487172396, 281358285]


WEIGHTS = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


def prefix_counts(sources, num_sources):
    return np.cumsum(sources[:, None] == np.arange(num_sources), axis=0)


@given(WEIGHTS)
def test_every_prefix_is_within_one_turn_of_the_weights(weights):
    num_positions = 2 * sum(weights) + 7
    sources, _ = Interleave(weights)(np.arange(num_positions))
    exact = np.array(weights) / sum(weights) * np.arange(1, num_positions + 1)[:, None]
    # 1e-9: the ideal share is computed in floating point here.
    assert np.abs(prefix_counts(sources, len(weights)) - exact).max() < 1 + 1e-9


@given(WEIGHTS, st.integers(0, 10**12))
def test_a_source_s_turns_count_up_from_any_position(weights, start):
    interleave = Interleave(weights)
    sources, indices = interleave(np.arange(start, start + 300))
    before = interleave.counts(start)
    for source in range(len(weights)):
        mine = indices[sources == source]
        assert mine.tolist() == list(range(before[source], before[source] + len(mine)))
    assert (interleave.counts(start + 300) - before).sum() == 300


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 300))
def test_another_length_of_the_run_leaves_what_was_read_and_goes_on_by_its_own_weights(before, now, until):
    def placed(num_positions):
        return [(0, (3.0, 1.0)), (num_positions // 2, (0.0, 1.0)), (num_positions * 3 // 4, (1.0, 1.0))]

    positions = np.arange(max(before, now, until) + 50)
    phases = phases_going_on(placed(now), earlier=placed(before), until=until)
    found = ScheduledInterleave(phases)(positions)
    read = [each.tolist() for each in ScheduledInterleave(placed(before))(positions[:until])]
    assert [each[:until].tolist() for each in found] == read
    for source in (0, 1):
        mine = found.indices[found.sources == source]
        assert mine.tolist() == list(range(len(mine))), "no row is passed over or read again"
    for position in (until, until + 20):
        active = [[weights for start, weights in each if start <= position][-1] for each in (phases, placed(now))]
        assert active[0] == active[1]
    assert phases_going_on(placed(now), earlier=placed(now), until=until) == placed(now), "to the last bit"


def test_golden_turns():
    assert Interleave([0.5, 0.3, 0.2])(np.arange(10)).sources.tolist() == [0, 1, 0, 2, 0, 1, 0, 1, 0, 2]


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 400),
)
def test_each_phase_keeps_to_its_weights_and_nothing_is_skipped(phases, num_positions):
    starts = np.cumsum([0, *(length for length, _ in phases[:-1])]).tolist()
    schedule = ScheduledInterleave([(start, weights) for start, (_, weights) in zip(starts, phases, strict=True)])
    sources, indices = schedule(np.arange(400))
    for source in range(3):
        assert indices[sources == source].tolist() == list(range(int((sources == source).sum())))
    assert schedule.counts(num_positions).tolist() == np.bincount(sources[:num_positions], minlength=3).tolist()
    for start, stop, (_, weights) in zip(starts, [*starts[1:], 400], phases, strict=True):
        inside = prefix_counts(sources[start:stop], 3)
        exact = np.array(weights) / sum(weights) * np.arange(1, stop - start + 1)[:, None]
        assert np.abs(inside - exact).max(initial=0) < 1 + 1e-9
