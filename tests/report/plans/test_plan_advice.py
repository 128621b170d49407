from dataclasses import replace

import pytest

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, Rate, horizon
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.model.model_facts import LinearBytes
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.accounting.training_plan.fit import memory_of
from lmtrain.accounting.training_plan.plan import Plan, Speed
from lmtrain.errors import ConfigurationError
from lmtrain.report.plans.plan_advice import Changes, advice
from tests.accounting.training_plan.test_fit import MILLION, SETTING

EVERY_BLOCK, SHARDS = "recompute=every_block", "strategy=fsdp"
OFTEN = "strategy.reduce_every_micro_step=true"


def plan_of(setting, *, sequences, num_ranks=1, budget=None, usd_per_gpu_hour=None, tokens_per_step=None):
    tokens = tokens_per_step or 240 * num_ranks
    batch = plan_batches(
        Batch(context_tokens=10, tokens_per_step=tokens, micro_batch_sequences=sequences), num_ranks=num_ranks
    )
    flops = flops_per_token(setting.facts.shape, 10)
    step_seconds = 36.0 * tokens / 240 / num_ranks
    run = horizon(
        budget or Budget(steps=10),
        tokens_per_step=batch.tokens_per_step,
        num_parameters=MILLION,
        flops_per_token=flops.palm,
        rate=Rate(seconds_per_step=step_seconds, usd_per_hour=usd_per_gpu_hour and usd_per_gpu_hour * num_ranks),
    )
    return Plan(
        shape=setting.facts.shape,
        batch=batch,
        horizon=run,
        flops_per_token=flops,
        memory=memory_of(setting, batch),
        device_bytes=setting.device_bytes,
        usd_per_gpu_hour=usd_per_gpu_hour,
        speed=Speed(step_seconds=step_seconds, mfu_palm=0.4, source="a test"),
    )


def typed(setting, words, recomputed=None, **asked):
    """Plan anew with words beside, as a person would type them."""
    asked["tokens_per_step"] = asked.get("tokens_per_step") or 240 * asked["num_ranks"]
    for word in words:
        key, _, value = word.partition("=")
        if word == "strategy=fsdp":
            setting = replace(setting, is_sharded=True)
        elif word == OFTEN:
            setting = replace(setting, keeps_whole_gradients=False)
        elif word == "recompute=every_block":
            setting = replace(recomputed, is_sharded=setting.is_sharded)
        elif key.startswith("budget."):
            budget = asked.get("budget") or Budget(steps=10)
            asked["budget"] = replace(budget, **{key.removeprefix("budget."): parse_quantity(value, key)})
        else:
            name = {"devices": "num_ranks", "micro_batch_sequences": "sequences"}.get(key.partition(".")[2])
            asked[name or key.partition(".")[2]] = int(value)
    try:
        return plan_of(setting, **asked)
    except ConfigurationError:
        return None


def planned(*, device_bytes, sequences=24, recomputes=False, recomputed=None, **asked):
    setting = replace(SETTING, device_bytes=device_bytes * MILLION)
    asked = {"num_ranks": 1, "sequences": sequences, **asked}
    changes = Changes(
        planned=lambda words: typed(setting, words, recomputed, **asked),
        words_of_devices=lambda num: (f"trainer.devices={num}",),
        sharded=lambda: [((SHARDS,), setting), *([((SHARDS, EVERY_BLOCK), recomputed)] if recomputed else [])],
        recomputed={} if recomputes else {EVERY_BLOCK: recomputed},
    )
    return advice(plan_of(setting, **asked), setting, changes)


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
        (1, "fits on 2 devices with strategy=fsdp trainer.devices=2 batch.micro_batch_sequences=1"),
    ],
)
def test_where_no_micro_batch_fits_sharding_does(num_ranks, line):
    said = planned(device_bytes=16, num_ranks=num_ranks)
    assert line in said.lines
    assert "recompute=every_block keeps only what enters each block" in said.lines


@pytest.mark.parametrize(
    ("is_sharded", "sequences", "device_bytes", "line"),
    [
        (True, 6, 18, f"fits with {OFTEN}"),
        (True, 24, 11, f"fits with {OFTEN} batch.micro_batch_sequences=2"),
        (False, 6, 11, f"fits with {SHARDS} {OFTEN} batch.micro_batch_sequences=2"),
    ],
)
def test_gradients_sent_at_every_micro_batch_are_advised_where_whole_ones_do_not_fit(
    is_sharded, sequences, device_bytes, line
):
    setting = replace(SETTING, device_bytes=device_bytes * MILLION, keeps_whole_gradients=True, word_against=OFTEN)
    asked = {"num_ranks": 4, "sequences": sequences}
    own = replace(setting, is_sharded=is_sharded)
    changes = Changes(
        planned=lambda words: typed(own, words, **asked),
        words_of_devices=lambda num: (f"trainer.devices={num}",),
        sharded=lambda: [((SHARDS,), setting)],
    )
    plan = plan_of(own, **asked)
    assert plan.fits is False
    assert line in advice(plan, own, changes).lines
    refused = replace(changes, planned=lambda words: None if OFTEN in words else typed(own, words, **asked))
    assert not any(OFTEN in said for said in advice(plan, own, refused).lines), "each is planned before it is said"


def test_what_fits_nowhere_is_said_so():
    said = planned(device_bytes=2, recomputes=True)
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


def test_recomputation_is_named_with_the_micro_batch_that_fits_where_that_is_known():
    activations = LinearBytes(fixed=0, per_sequence=1)
    recomputed = replace(SETTING, facts=replace(SETTING.facts, activations=activations), device_bytes=17 * MILLION)
    said = planned(device_bytes=17, num_ranks=4, recomputed=recomputed)
    found = [line for line in said.lines if "recompute=every_block" in line]
    assert found
    assert "recompute=every_block keeps only what enters each block" not in said.lines


def test_devices_that_do_not_divide_the_step_are_not_advised():
    said = planned(device_bytes=100, sequences=24, budget=Budget(hours=1, steps=300))
    assert said.lines[-1] == "finishes with budget.hours=3, or with budget.tokens=24K"


def test_what_its_own_plan_refuses_is_not_said():
    setting = replace(SETTING, device_bytes=16 * MILLION)
    refused = Changes(
        planned=lambda _: None,
        words_of_devices=lambda num: (f"trainer.devices={num}",),
        sharded=lambda: [((SHARDS,), setting)],
    )
    lines = advice(plan_of(setting, sequences=24), setting, refused).lines
    assert not [line for line in lines if line.startswith("fits")]
