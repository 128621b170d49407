import pytest

from lmtrain.accounting.budgets import Horizon
from lmtrain.errors import ConfigurationError
from lmtrain.run.builders.schedules import require_ramps_fit, schedules_of
from lmtrain.run.schema.node import Node
from tests.configs import config_of, config_with


def horizon(steps, *, seconds=None):
    return Horizon(steps=steps, tokens=steps * 2048, flops=1, limited_by="steps", seconds=seconds, most_steps=steps)


def composed(*overrides, steps=1000, fork_step=None):
    config = config_of(*overrides)
    return schedules_of(config, horizon=horizon(steps), tokens_per_step=2048, fork_step=fork_step)


def test_tokens_are_counted_by_the_run_s_own_steps():
    schedule = composed("schedule=linear", "schedule.warmup_fraction=null", "schedule.warmup_tokens=204800")["schedule"]
    assert [schedule(step, 1000) for step in (0, 50, 100, 1000)] == [0, 0.5, 1.0, 0.0]


def test_a_cool_down_begins_where_the_run_was_forked_unless_told_otherwise():
    forked = composed("schedule=cooldown", steps=1200, fork_step=1000)["schedule"]
    told = composed("schedule=cooldown", "schedule.start_step=600", steps=1200, fork_step=1000)["schedule"]
    assert [forked(step, 1200) for step in (1000, 1100, 1200)] == [1.0, 0.5, 0.0]
    assert [told(step, 1200) for step in (600, 900, 1200)] == [1.0, 0.5, 0.0]
    with pytest.raises(ConfigurationError, match="does not know where it begins"):
        composed("schedule=cooldown", steps=1200)
    with pytest.raises(ConfigurationError, match=r"start_step=1000 is not before.*step 900"):
        composed("schedule=cooldown", steps=900, fork_step=1000)
    with pytest.raises(ConfigurationError, match=r"start_step=-1 is negative; nearest valid: 0"):
        composed("schedule=cooldown", "schedule.start_step=-1")


def test_momentum_and_weight_decay_have_no_schedule_by_default():
    assert composed().keys() == {"schedule", "momentum_schedule", "weight_decay_schedule"}
    assert composed()["momentum_schedule"] is composed()["weight_decay_schedule"] is None
    schedules = composed("momentum_schedule=rise_and_fall", "weight_decay_schedule=cosine")
    assert schedules["momentum_schedule"](0, 1000, 0.97) == 0.85
    assert schedules["weight_decay_schedule"](500, 1000) == pytest.approx(0.5)


def refuse(node, *, horizon, name="schedule"):
    bare = {key: Node(key, {}) for key in ("schedule", "momentum_schedule")}
    config = config_with(**{**bare, name: Node(name, node)})
    require_ramps_fit(config, horizon=horizon, tokens_per_step=1000)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"warmup_steps": 101},
            r"schedule\.warmup_steps=101 take 101 .* than the run of 100.*=100, or budget\.steps=101\.",
        ),
        (
            {"warmup_steps": 50, "warmdown_fraction": 0.6},
            r"warmup_steps=50 and schedule\.warmdown_fraction=0\.6 take 110",
        ),
        (
            {"warmup_tokens": 90_000, "warmdown_steps": 20},
            r"valid: schedule\.warmup_steps=80, or budget\.steps=110\.",
        ),
        ({"warmdown_steps": 200}, r"warmdown_steps=200 take 200 steps.*shorten them, or raise the budget"),
    ],
)
def test_a_schedule_longer_than_its_budget_is_refused_with_what_would_fit(node, message):
    with pytest.raises(ConfigurationError, match=message):
        refuse(node, horizon=horizon(100))


def test_a_momentum_that_has_no_time_to_rise_is_refused_under_its_own_key():
    with pytest.raises(
        ConfigurationError,
        match=r"^momentum_schedule\..*=400 and .*take 460.*_steps=40, or budget\.steps=1000\.",
    ):
        refuse({"warmup_steps": 400, "warmdown_fraction": 0.6}, horizon=horizon(100), name="momentum_schedule")
    with pytest.raises(
        ConfigurationError, match=r"momentum_schedule\.warmdown_fraction=7 is not between 0 and 1; 7% is 0\.07"
    ):
        refuse({"warmdown_fraction": 7}, horizon=horizon(100), name="momentum_schedule")


@pytest.mark.parametrize("steps", [1, 2, 3, 99])
def test_ramps_that_fill_a_run_fit_it_however_short(steps):
    refuse({"warmup_fraction": 0.4, "warmdown_fraction": 0.6}, horizon=horizon(steps))
    refuse({"warmup_steps": steps}, horizon=horizon(steps))
    refuse({"final_fraction": 0.1}, horizon=horizon(steps))


def test_a_budget_of_time_whose_end_moves_refuses_no_ramp():
    refuse({"warmup_steps": 1000}, horizon=horizon(10, seconds=60.0))
