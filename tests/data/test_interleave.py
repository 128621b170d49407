from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.data.interleave import (
    MAX_PERIOD,
    Interleave,
    ScheduledInterleave,
    phases_going_on,
    turns_per_period,
)

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


@pytest.mark.parametrize(
    ("weights", "turns"),
    [([0.7, 0.2, 0.1], (7, 2, 1)), ([1, 1, 1], (1, 1, 1)), ([3.0], (1,)), ([0, 2, 1], (0, 2, 1)), ([1e3, 5e2], (2, 1))],
)
def test_weights_become_the_smallest_whole_turns(weights, turns):
    assert turns_per_period(weights) == turns


def test_weights_that_no_short_period_holds_are_rounded_to_a_65536th():
    weights = [0.123457, 0.7, 0.176543123]
    turns = turns_per_period(weights)
    assert sum(turns) == MAX_PERIOD
    total = sum(Fraction(str(weight)) for weight in weights)
    assert all(
        abs(t / MAX_PERIOD - float(Fraction(str(w)) / total)) < 1 / MAX_PERIOD
        for t, w in zip(turns, weights, strict=True)
    )


def test_a_weight_without_a_single_turn_is_refused():
    with pytest.raises(ValueError, match=r"weight 1e-09 is below 1/65,536"):
        turns_per_period([1.0, 1e-9])


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


def test_far_positions_are_answered_at_once():
    sources, indices = Interleave([0.9, 0.1])(np.array([10**15]))
    assert indices[0] == pytest.approx(10**15 * (0.9, 0.1)[sources[0]], abs=1)
