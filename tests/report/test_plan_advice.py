from dataclasses import replace

import pytest

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, Rate, horizon
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.model.model_facts import LinearBytes
from lmtrain.accounting.training_plan.fit import memory_of
from lmtrain.accounting.training_plan.plan import Plan, Speed
from lmtrain.report.plan_advice import advice
from tests.accounting.training_plan.test_fit import MILLION, SETTING


def planned(*, device_bytes, sequences=24, num_ranks=1, budget=None, usd_per_gpu_hour=None, **settings):
    setting = replace(SETTING, device_bytes=device_bytes * MILLION)
    asked = Batch(context_tokens=10, tokens_per_step=240 * num_ranks, micro_batch_sequences=sequences)
    batch = plan_batches(asked, num_ranks=num_ranks)
    flops = flops_per_token(setting.facts.shape, 10)
    run = horizon(
        budget or Budget(steps=10),
        tokens_per_step=batch.tokens_per_step,
        num_parameters=MILLION,
        flops_per_token=flops.palm,
        rate=Rate(seconds_per_step=36.0, usd_per_hour=usd_per_gpu_hour and usd_per_gpu_hour * num_ranks),
    )
    plan = Plan(
        shape=setting.facts.shape,
        batch=batch,
        horizon=run,
        flops_per_token=flops,
        memory=memory_of(setting, batch),
        device_bytes=setting.device_bytes,
        usd_per_gpu_hour=usd_per_gpu_hour,
        speed=Speed(step_seconds=36.0, mfu_palm=0.4, source="a test"),
    )
    return advice(plan, setting, **{"recomputes": False, **settings})


def test_a_plan_that_fits_is_possible_and_told_of_a_larger_micro_batch():
    said = planned(device_bytes=30, sequences=2)
    assert said.is_possible
    assert said.lines == ("a larger micro batch fits too: batch.micro_batch_sequences=6",)


def test_the_nearest_smaller_micro_batch_is_named_first():
    said = planned(device_bytes=30)
    assert not said.is_possible
    assert said.lines[1] == "fits with batch.micro_batch_sequences=6"


@pytest.mark.parametrize(
    ("num_ranks", "line"),
    [
        (4, "fits with strategy=fsdp batch.micro_batch_sequences=4"),
        (1, "fits on 2 devices with strategy=fsdp batch.micro_batch_sequences=1"),
    ],
)
def test_where_no_micro_batch_fits_sharding_does(num_ranks, line):
    said = planned(device_bytes=16, num_ranks=num_ranks)
    assert line in said.lines
    assert "recompute=every_block keeps only what enters each block" in said.lines


def test_what_fits_nowhere_is_said_so():
    said = planned(device_bytes=2, recomputes=True)
    assert said.lines[-1].startswith("does not fit on any number of devices")


def test_a_budget_of_time_that_ends_too_early_says_what_would_do():
    said = planned(device_bytes=100, budget=Budget(hours=1, steps=300))
    assert not said.is_possible
    assert said.lines[-2] == "does not finish: budget.hours ends it after 33% of the 72.0K tokens"
    assert said.lines[-1] == "finishes with budget.hours=3, or with 3 devices, or with budget.tokens=24K"


def test_dollars_that_end_too_early_are_not_stretched_by_more_devices():
    said = planned(device_bytes=100, budget=Budget(usd=10, steps=300), num_ranks=2, usd_per_gpu_hour=5.0)
    assert said.lines[-1] == "finishes with budget.usd=30, or with budget.tokens=48K"


def test_what_was_advised_finishes():
    for budget in (Budget(hours=3, steps=300), Budget(hours=1, tokens=24_000)):
        assert planned(device_bytes=100, budget=budget).is_possible


def test_recomputation_is_named_with_the_micro_batch_that_fits_where_that_is_known():
    activations = LinearBytes(fixed=0, per_sequence=1)
    recomputed = replace(SETTING, facts=replace(SETTING.facts, activations=activations), device_bytes=17 * MILLION)
    said = planned(device_bytes=17, num_ranks=4, recomputed=recomputed)
    found = [line for line in said.lines if "recompute=every_block" in line]
    assert found
    assert "recompute=every_block keeps only what enters each block" not in said.lines
