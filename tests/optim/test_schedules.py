"""The published points of each curve, exactly, and what happens past the end and on nonsense."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_inverse_sqrt_schedule, get_linear_schedule_with_warmup

from lmtrain.optim import weight_decay_schedules as decay
from lmtrain.optim.momentum_schedules import rise_and_fall
from lmtrain.optim.schedules import constant, inverse_sqrt, linear, range_test, trapezoid, warmup_cosine

COSINE = {"warmup_steps": 1000, "final_fraction": 0.1}
TRAPEZOID = {"warmup_steps": 40, "warmdown_fraction": 0.65, "final_fraction": 0.05}
WITH_WARMUP = [
    constant,
    inverse_sqrt,
    partial(linear, final_fraction=0.1),
    partial(warmup_cosine, final_fraction=0.1),
    partial(trapezoid, warmdown_fraction=0.5, final_fraction=0.1),
]


@pytest.mark.parametrize(("step", "expected"), [(0, 0.0), (500, 0.5), (1000, 1.0), (10_500, 0.55), (20_000, 0.1)])
def test_warmup_cosine_passes_through_its_published_points(step: int, expected: float) -> None:
    assert warmup_cosine(step, 20_000, **COSINE) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.025), (39, 1.0), (350, 1.0), (351, 1 - 0.95 / 650), (675, 0.525), (1000, 0.05)]
)
def test_trapezoid_passes_through_its_published_points(step: int, expected: float) -> None:
    assert trapezoid(step, 1000, **TRAPEZOID) == pytest.approx(expected, abs=1e-12)
    assert round(trapezoid(351, 1000, **TRAPEZOID), 4) == 0.9985


def curve_of_transformers(make, num_steps, **settings):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer, **settings)
    values = []
    for _ in range(num_steps):
        values.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return values


def test_linear_is_that_of_transformers() -> None:
    expected = curve_of_transformers(get_linear_schedule_with_warmup, 121, num_warmup_steps=10, num_training_steps=100)
    assert [linear(step, 100, warmup_steps=10, final_fraction=0.0) for step in range(121)] == pytest.approx(expected)
    assert linear(55, 100, warmup_steps=10, final_fraction=0.2) == pytest.approx(0.6)


def test_inverse_square_root_is_that_of_transformers() -> None:
    expected = curve_of_transformers(get_inverse_sqrt_schedule, 101, num_warmup_steps=10)
    assert [inverse_sqrt(step, 100, warmup_steps=10) for step in range(101)] == pytest.approx(expected)
    assert inverse_sqrt(40, 100, warmup_steps=10) == 0.5


@pytest.mark.parametrize("schedule", WITH_WARMUP)
@given(data=st.data())
def test_every_value_is_between_0_and_1_and_none_rises_after_the_warmup(schedule, data) -> None:
    total = data.draw(st.integers(1, 5000))
    warmup = data.draw(st.integers(1, 2 * total))
    step = data.draw(st.integers(0, 2 * total))
    value, after = (schedule(place, total, warmup_steps=warmup) for place in (step, step + 1))
    assert 0 <= value <= 1
    if step >= min(warmup, total):
        assert after <= value + 1e-12


@pytest.mark.parametrize("schedule", WITH_WARMUP)
def test_a_warmup_is_the_same_in_steps_in_tokens_and_as_a_fraction(schedule) -> None:
    for step in range(0, 1200, 7):
        in_steps = schedule(step, 1000, warmup_steps=40)
        assert schedule(step, 1000, warmup_tokens=40 * 2048, tokens_per_step=2048) == in_steps
        assert schedule(step, 1000, warmup_tokens=39 * 2048 + 1, tokens_per_step=2048) == in_steps, "whole steps"
        assert schedule(step, 1000, warmup_fraction=0.04) == in_steps


MUON = {"initial": 0.85, "final": 0.90, "warmup_steps": 400, "warmdown_fraction": 0.65}


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.85), (200, 0.91), (400, 0.97), (700, 0.97), (701, 0.97 - 0.07 / 1300), (1350, 0.935), (2000, 0.90)],
)
def test_muon_s_momentum_passes_through_its_published_points(step: int, expected: float) -> None:
    assert rise_and_fall(step, 2000, 0.97, **MUON) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(("schedule", "middle"), [(decay.linear, 0.6), (decay.cosine, 0.6)], ids=["linear", "cosine"])
def test_weight_decay_falls_from_one_to_its_end_and_stays_there(schedule, middle: float) -> None:
    values = [schedule(step, 100, final_fraction=0.2) for step in range(101)]
    assert (values[0], values[50], values[100]) == (1.0, pytest.approx(middle), pytest.approx(0.2))
    assert values == sorted(values, reverse=True)
    assert schedule(10**6, 100, final_fraction=0.2) == pytest.approx(0.2)


def test_it_rises_from_the_lowest_to_the_highest_by_one_factor():
    curve = [range_test(step, 5, lowest=0.01, highest=100.0) for step in range(5)]
    assert curve == pytest.approx([0.01, 0.1, 1.0, 10.0, 100.0])
    assert range_test(9, 5, lowest=0.01, highest=100.0) == pytest.approx(100.0), "beyond the end"
