from dataclasses import replace

import pytest

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, Rate, horizon
from lmtrain.accounting.fit import memory_of
from lmtrain.accounting.flops import flops_per_token
from lmtrain.accounting.plan import Plan, Speed
from lmtrain.report.plan_advice import advice
from tests.accounting.test_fit import MILLION, SETTING


def planned(*, device_bytes, sequences=24, num_ranks=1, budget=None, **settings):
    setting = replace(SETTING, device_bytes=device_bytes * MILLION)
    asked = Batch(context_tokens=10, tokens_per_step=240 * num_ranks, micro_batch_sequences=sequences)
    batch = plan_batches(asked, num_ranks=num_ranks)
    flops = flops_per_token(setting.facts.shape, 10)
    run = horizon(
        budget or Budget(steps=10),
        tokens_per_step=batch.tokens_per_step,
        num_parameters=MILLION,
        flops_per_token=flops.palm,
        rate=Rate(seconds_per_step=36.0),
    )
    plan = Plan(
        shape=setting.facts.shape,
        batch=batch,
        horizon=run,
        flops_per_token=flops,
        memory=memory_of(setting, batch),
        device_bytes=setting.device_bytes,
        speed=Speed(step_seconds=36.0, mfu_palm=0.4, source="a test"),
    )
    return advice(plan, setting, **{"strategy": "ddp", "recompute": "none", **settings})


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
        (4, "fits with strategy=fsdp batch.micro_batch_sequences=1"),
        (1, "fits on 2 devices with strategy=fsdp batch.micro_batch_sequences=1"),
    ],
)
def test_where_no_micro_batch_fits_sharding_does(num_ranks, line):
    said = planned(device_bytes=16, num_ranks=num_ranks)
    assert line in said.lines
    assert "recompute=every_block keeps only what enters each block" in said.lines


def test_what_fits_nowhere_is_said_so():
    said = planned(device_bytes=2, recompute="every_block")
    assert said.lines[-1].startswith("does not fit on any number of devices")


def test_a_budget_of_time_that_ends_too_early_says_what_would_do():
    said = planned(device_bytes=100, budget=Budget(hours=1, steps=300))
    assert not said.is_possible
    assert said.lines[-2] == "does not finish: budget.hours ends it after 33% of the 72.0K tokens"
    assert said.lines[-1] == "finishes in 3.0 hours, or with 3.0 times the devices, or in 24.0K tokens"
