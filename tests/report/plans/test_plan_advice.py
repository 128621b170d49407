from dataclasses import replace

from lmtrain.accounting.budgets import Budget
from lmtrain.report.plans.plan_advice import advice
from tests.accounting.training_plan.test_fit import MILLION, SETTING
from tests.report.plans.test_fit_advice import changes_of, plan_of


def planned(*, device_bytes, sequences=24, recomputed=None, **asked):
    setting = replace(SETTING, device_bytes=device_bytes * MILLION)
    asked = {"num_ranks": 1, "sequences": sequences, **asked}
    changes = changes_of(setting, recomputed=recomputed, **asked)
    return advice(plan_of(setting, **asked), setting, changes)


def test_a_plan_that_fits_is_possible_and_told_of_a_larger_micro_batch():
    said = planned(device_bytes=30, sequences=2)
    assert said.is_possible
    assert said.lines == ("a larger micro batch fits too: batch.micro_batch_sequences=6",)


def test_the_nearest_smaller_micro_batch_is_named_first():
    said = planned(device_bytes=30)
    assert not said.is_possible
    assert said.lines[1] == "fits with batch.micro_batch_sequences=6"


def test_what_fits_nowhere_is_said_so():
    said = planned(device_bytes=2)
    assert said.lines[-1].startswith("does not fit on any number of devices")


def test_a_budget_of_time_that_ends_too_early_says_what_would_do():
    said = planned(device_bytes=100, sequences=4, budget=Budget(hours=1, steps=300))
    assert not said.is_possible
    assert said.lines[-2] == "does not finish: budget.hours ends it after 33% of the 72.0K tokens"
    assert said.lines[-1] == "finishes with budget.hours=3, or with trainer.devices=3, or with budget.tokens=24K"


def test_where_a_change_fits_the_time_is_that_of_the_run_with_it():
    said = planned(device_bytes=16, budget=Budget(hours=1, steps=300))
    words = "strategy=fsdp trainer.devices=2 batch.micro_batch_sequences=1"
    assert f"fits on 2 devices with {words}" in said.lines
    assert said.lines[-2] == f"does not finish with {words}: budget.hours ends it after 67% of the 72.0K tokens"
    more = "strategy=fsdp batch.micro_batch_sequences=1 trainer.devices=3"
    assert said.lines[-1].startswith(f"finishes with {words} budget.hours=1.5, or with {more}, or with ")


def test_dollars_that_end_too_early_are_not_stretched_by_more_devices():
    said = planned(device_bytes=100, budget=Budget(usd=10, steps=300), num_ranks=2, usd_per_gpu_hour=5.0)
    assert said.lines[-1] == "finishes with budget.usd=30, or with budget.tokens=48K"


def test_what_was_advised_finishes():
    for budget in (Budget(hours=3, steps=300), Budget(hours=1, tokens=24_000)):
        assert planned(device_bytes=100, budget=budget).is_possible


def test_devices_that_do_not_divide_the_step_are_not_advised():
    said = planned(device_bytes=100, sequences=24, budget=Budget(hours=1, steps=300))
    assert said.lines[-1] == "finishes with budget.hours=3, or with budget.tokens=24K"
