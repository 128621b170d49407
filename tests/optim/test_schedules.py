"""The published points of each curve, exactly, and what happens past the end and on nonsense."""

import math
from functools import partial

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.optim.schedules import constant, trapezoid, warmup_cosine

COSINE = {"warmup_steps": 1000, "final_fraction": 0.1}
TRAPEZOID = {"warmup_steps": 40, "warmdown_fraction": 0.65, "final_fraction": 0.05}


@pytest.mark.parametrize(("step", "expected"), [(0, 0.0), (500, 0.5), (1000, 1.0), (10_500, 0.55), (20_000, 0.1)])
def test_warmup_cosine_passes_through_its_published_points(step: int, expected: float) -> None:
    assert warmup_cosine(step, 20_000, **COSINE) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.025), (39, 1.0), (350, 1.0), (351, 1 - 0.95 / 650), (675, 0.525), (1000, 0.05)]
)
def test_trapezoid_passes_through_its_published_points(step: int, expected: float) -> None:
    assert trapezoid(step, 1000, **TRAPEZOID) == pytest.approx(expected, abs=1e-12)
    assert round(trapezoid(351, 1000, **TRAPEZOID), 4) == 0.9985


@pytest.mark.parametrize("step", [20_001, 30_000, 40_000, 10**9])
def test_no_schedule_rises_again_past_the_end(step: int) -> None:
    assert warmup_cosine(step, 20_000, **COSINE) == pytest.approx(0.1, abs=1e-15)
    assert trapezoid(step, 20_000, **TRAPEZOID) == pytest.approx(0.05, abs=1e-15)
    assert constant(step, 20_000, warmup_steps=10) == 1.0


def test_constant_is_one_from_the_start_unless_warmed_up() -> None:
    assert [constant(step, 10) for step in range(12)] == [1.0] * 12
    assert [constant(step, 10, warmup_steps=4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_trapezoid_takes_the_lower_ramp_where_they_overlap() -> None:
    curve = [trapezoid(step, 10, warmup_steps=10, warmdown_fraction=1.0, final_fraction=0.0) for step in range(11)]
    assert curve == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])


def test_trapezoid_without_warmdown_stays_flat() -> None:
    assert trapezoid(10, 10, warmup_steps=0, warmdown_fraction=0.0, final_fraction=0.0) == 1.0


def test_warmup_may_fill_the_run_but_not_outlast_it() -> None:
    assert warmup_cosine(5, 5, warmup_steps=5, final_fraction=0.1) == pytest.approx(0.1)
    for schedule in (
        lambda: constant(0, 5, warmup_steps=6),
        lambda: warmup_cosine(0, 5, warmup_steps=6, final_fraction=0.1),
        lambda: trapezoid(0, 5, warmup_steps=6, warmdown_fraction=0.5, final_fraction=0.1),
    ):
        with pytest.raises(ConfigurationError, match=r"schedule\.warmup_steps=6 is longer .* 5 steps.* valid: 5\."):
            schedule()


@pytest.mark.parametrize(("fraction", "nearest"), [(1.5, "1"), (-0.1, "0")])
def test_fraction_outside_zero_to_one_is_refused_with_the_nearest(fraction: float, nearest: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"schedule\.final_fraction={fraction} .* valid: {nearest}\."):
        warmup_cosine(0, 5, warmup_steps=1, final_fraction=fraction)
    with pytest.raises(ConfigurationError, match=rf"schedule\.warmdown_fraction={fraction} .* valid: {nearest}\."):
        trapezoid(0, 5, warmup_steps=1, warmdown_fraction=fraction, final_fraction=0.1)


@pytest.mark.parametrize("total_steps", [1, 2, 750])
def test_a_warmup_as_a_fraction_fits_a_run_of_any_length(total_steps: int) -> None:
    steps = math.ceil(0.027 * total_steps)
    curve = partial(trapezoid, warmdown_fraction=0.5, final_fraction=0.0)
    assert curve(0, total_steps, warmup_fraction=0.027) == curve(0, total_steps, warmup_steps=steps)
