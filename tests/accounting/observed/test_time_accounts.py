from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.observed.time_accounts import (
    Attempt,
    StopwatchReading,
    TimeBalance,
    balance,
)


def reading(step, **seconds):
    return StopwatchReading(step=step, time=sum(seconds.values()), seconds=seconds)


def attempt(*readings, seconds, number=1):
    return Attempt(number=number, started_at=100.0, ended_at=100.0 + seconds, readings=readings)


FIRST = attempt(
    reading(0, setup=5.0),
    reading(10, setup=5.0, compute=20.0, data_wait=1.0),
    reading(20, setup=5.0, compute=40.0, data_wait=2.0, checkpoint=3.0),
    seconds=52.0,
)


def test_one_attempt_adds_up_to_its_clock_and_its_end_is_overhead():
    whole = balance([FIRST])
    assert whole.seconds == {
        "setup": 5.0, "compute": 40.0, "data_wait": 2.0, "checkpoint": 3.0, "host_overhead": 2.0,
    }  # fmt: skip
    assert whole.wall_seconds == 52.0
    assert whole.goodput == pytest.approx(40 / 52)


def test_steps_done_again_are_lost():
    again = attempt(reading(10, setup=4.0), reading(20, setup=4.0, compute=19.0), seconds=23.0, number=2)
    whole = balance([FIRST, again])
    assert whole.seconds["compute"] == 20.0 + 19.0
    assert whole.seconds["lost"] == pytest.approx(52.0 - 26.0)
    assert whole.wall_seconds == pytest.approx(52.0 + 23.0)


@given(st.lists(st.lists(st.floats(0.1, 50), min_size=1, max_size=6), min_size=1, max_size=5), st.data())
def test_the_balance_is_the_clock_whatever_happened(lives, data):
    attempts = []
    for number, spent in enumerate(lives):
        start = data.draw(st.integers(0, 30))
        readings = [
            reading(start + 10 * index, setup=1.0, compute=sum(spent[: index + 1])) for index in range(len(spent))
        ]
        attempts.append(attempt(*readings, seconds=1.0 + sum(spent) + 0.5, number=number))
    whole = balance(attempts)
    assert whole.wall_seconds == pytest.approx(sum(one.wall_seconds for one in attempts))
    assert all(seconds >= 0 for seconds in whole.seconds.values())
    assert whole.num_attempts == len(lives)


def test_a_pause_under_way_is_no_setup_and_no_overhead():
    begun = Attempt(number=1, started_at=0.0, ended_at=60.0, pause=("compile", 10.0))
    assert balance([begun]).seconds == {"setup": 10.0, "compile": 50.0}
    reading = StopwatchReading(step=3, time=30.0, seconds={"setup": 10.0, "compute": 20.0, "evaluation": 1.0})
    trained = replace(begun, readings=(reading,), pause=("evaluation", 40.0))
    assert balance([trained]).seconds == {"setup": 10.0, "compute": 20.0, "evaluation": 21.0, "host_overhead": 9.0}


def test_the_rest_goes_on_at_the_pace_so_far_without_what_comes_once():
    spent = TimeBalance(seconds={"setup": 50.0, "compile": 100.0, "lost": 9.0, "compute": 20.0, "evaluation": 5.0})
    assert spent.seconds_left(steps_done=10, steps_left=30) == pytest.approx(75.0)
    assert spent.seconds_left(steps_done=10, steps_left=-1) == 0.0
    assert spent.seconds_left(steps_done=0, steps_left=30) is None
    assert spent.seconds_left(steps_done=10, steps_left=30, at_most=-1.0) == 0.0
    passes = spent.seconds_left(steps_done=10, steps_left=30, passes_done=2, passes_left=3)
    assert passes == pytest.approx(60.0 + 7.5)
