from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.budgets import (
    Budget,
    RunSoFar,
    horizon,
)
from lmtrain.errors import ConfigurationError


def of(
    budget,
    *,
    tokens_per_step=1000,
    num_parameters=100,
    flops_per_token=600,
    epoch_tokens=None,
    **more,
):
    return horizon(
        budget,
        tokens_per_step=tokens_per_step,
        num_active_parameters=num_parameters,
        flops_per_token=flops_per_token,
        epoch_tokens=epoch_tokens,
        **more,
    )


def test_depth_24_nano_at_eight_tokens_per_parameter():
    run = of(
        Budget(tokens_per_parameter=8),
        tokens_per_step=2**20,
        num_parameters=729_810_624,
        flops_per_token=4_775_225_472,
    )
    assert (run.steps, run.tokens) == (5_568, 5_838_471_168)
    assert run.flops == pytest.approx(2.788e19, rel=1e-4)


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (999, 1), (1000, 1), (1001, 2), (20_000, 20)])
def test_budget_stops_at_first_step_at_or_past_it(tokens, steps):
    assert of(Budget(tokens=tokens)).steps == steps


@pytest.mark.parametrize(("epochs", "steps"), [(1, 10), (3, 30), (0.5, 5), (1.01, 11), (1e-9, 1)])
def test_epochs_are_passes_over_the_training_tokens(epochs, steps):
    run = of(Budget(epochs=epochs), epoch_tokens=10_000)
    assert (run.steps, run.limited_by) == (steps, "epochs")


def test_epochs_of_data_that_is_not_prepared_are_refused_with_what_makes_them_known():
    with pytest.raises(ConfigurationError, match=r"budget\.epochs=3 needs the number of training tokens.*budget"):
        of(Budget(epochs=3))
    with pytest.raises(ConfigurationError, match=r"plan with .*budget\.tokens=1M\.$"):
        of(Budget(epochs=3, tokens=10_000_000))


def test_of_several_budgets_the_first_reached_ends_the_run():
    run = of(Budget(steps=10, tokens=5_000, tokens_per_parameter=20, flops=1e12))
    assert (run.steps, run.limited_by) == (2, "tokens_per_parameter")


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("tokens", -5), ("flops", float("nan"))])
def test_budget_that_is_not_above_zero_is_refused_by_key(name, value):
    with pytest.raises(ConfigurationError, match=rf"budget\.{name}={value}"):
        of(Budget(**{name: value}))


@given(st.integers(1, 10**16), st.integers(1, 10**8))
def test_token_budget_is_met_and_one_step_less_would_not_be(tokens, tokens_per_step):
    run = of(Budget(tokens=tokens), tokens_per_step=tokens_per_step)
    assert run.tokens >= tokens > run.tokens - tokens_per_step


def test_hours_are_steps_at_the_expected_speed():
    run = of(Budget(hours=2), seconds_per_step=3.0)
    assert (run.steps, run.seconds, run.limited_by, run.most_steps) == (2400, 7200.0, "hours", None)


@pytest.mark.parametrize(("usd", "limited_by", "steps"), [(30, "usd", 1200), (31, "hours", 1220)])
def test_of_hours_and_dollars_the_one_with_less_left_ends_the_run(usd, limited_by, steps):
    """As after an attempt on twice the devices, whose dollars were spent in half the time."""
    done = RunSoFar(steps=100, seconds=240.0, device_seconds=2100.0)
    run = of(Budget(hours=1, usd=usd), seconds_per_step=3.0, usd_per_hour=20.0, done=done)
    assert (run.limited_by, run.steps) == (limited_by, steps)
    assert run.seconds_left(done) == (steps - 100) * 3.0


@pytest.mark.parametrize(
    ("seconds", "steps", "limited_by"),
    [(14.0, 7, "hours"), (59.0, 9, "hours"), (60.0, 10, "hours"), (14_895.0, 999, "hours"), (1e9, 1000, "steps")],
)
def test_a_budget_of_time_is_left_with_the_steps_that_it_is_enough_for(seconds, steps, limited_by):
    done = RunSoFar(steps=7, seconds=0.0)
    run = replace(of(Budget(steps=1000)), seconds=seconds, time_limit="hours")
    found = run.within_time(lambda last: 15.0 * (last - 6), done=done)
    assert (found.steps, found.limited_by, found.tokens) == (steps, limited_by, steps * (run.tokens // run.steps))
