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
from lmtrain.report.plans.fit_advice import Changes, Levers, remedies_elsewhere, remedies_here
from tests.accounting.training_plan.test_fit import MILLION, SETTING

EVERY_BLOCK, SHARDS = "recompute=every_block", "strategy=fsdp"
OFTEN = "strategy.reduce_every_micro_step=true"
ALONE = "batch.micro_batch_sequences=1"
RECOMPUTED = replace(
    SETTING, facts=replace(SETTING.facts, activations=LinearBytes(fixed=0, per_sequence=1)), device_bytes=17 * MILLION
)


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
        num_active_parameters=MILLION,
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
        if key in ("strategy", "recompute") or word == OFTEN:
            setting = memory_with(setting, [word], recomputed)
        elif key.startswith("budget."):
            budget = asked.get("budget") or Budget(steps=10)
            asked["budget"] = replace(
                budget, **{key.removeprefix("budget."): None if value == "null" else parse_quantity(value, key)}
            )
        else:
            name = {"devices": "num_ranks", "micro_batch_sequences": "sequences"}.get(key.partition(".")[2])
            asked[name or key.partition(".")[2]] = int(value)
    try:
        return plan_of(setting, **asked)
    except ConfigurationError:
        return None


def memory_with(setting, words, recomputed):
    for word in words:
        if word == SHARDS:
            setting = replace(setting, is_sharded=True)
        elif word == OFTEN:
            setting = replace(setting, keeps_whole_gradients=False)
        elif word == EVERY_BLOCK:
            setting = replace(recomputed, is_sharded=setting.is_sharded, device_bytes=setting.device_bytes)
    return setting


def changes_of(setting, *, recomputed=None, refused=(), trains=lambda _: True, **asked):
    """Return the changes of a setting: shards with more messages, and a recomputation where its memory is given."""
    has_settings = setting.is_sharded and setting.keeps_whole_gradients
    sharded = [(SHARDS,), *([(SHARDS, OFTEN)] if setting.keeps_whole_gradients else [])]
    levers = Levers(
        settings=[(OFTEN,)] if has_settings else [],
        strategies=sharded if asked["num_ranks"] > 1 else [],
        on_more=sharded,
        others=[[EVERY_BLOCK]] if recomputed else [],
        most_devices=(),
        memory=lambda words, *, measures: memory_with(setting, words, recomputed),
        trains=trains,
    )
    return Changes(
        planned=lambda words: None if {*refused} & {*words} else typed(setting, words, recomputed, **asked),
        words_of_devices=lambda num: (f"trainer.devices={num}",),
        levers=lambda: levers,
    )


def found(*, device_bytes, recomputed=None, refused=(), trains=lambda _: True, **asked):
    """Return the words on the same devices and elsewhere."""
    setting = replace(SETTING, device_bytes=round(device_bytes * MILLION), **asked.pop("setting", {}))
    plan = plan_of(setting, **asked)
    assert plan.fits is False
    changes = changes_of(setting, recomputed=recomputed, refused=refused, trains=trains, **asked)
    both = remedies_here(plan, changes), remedies_elsewhere(plan, changes)
    return [[one.words for one in remedies] for remedies in both]


def test_where_no_micro_batch_fits_sharding_does_here_or_on_more_devices():
    here, _ = found(device_bytes=16, num_ranks=4, sequences=24)
    assert here == [(SHARDS, "batch.micro_batch_sequences=4")]
    here, elsewhere = found(device_bytes=16, num_ranks=1, sequences=24)
    assert here == []
    assert elsewhere == [(SHARDS, "trainer.devices=2", ALONE)]


@pytest.mark.parametrize(
    ("is_sharded", "sequences", "device_bytes", "words"),
    [
        (True, 6, 18, (OFTEN,)),
        (True, 24, 11, (OFTEN, "batch.micro_batch_sequences=2")),
        (False, 6, 10, (SHARDS, OFTEN, "batch.micro_batch_sequences=2")),
    ],
)
def test_gradients_sent_at_every_micro_batch_are_advised_where_whole_ones_do_not_fit(
    is_sharded, sequences, device_bytes, words
):
    asked = {"num_ranks": 4, "sequences": sequences, "device_bytes": device_bytes}
    setting = {"is_sharded": is_sharded, "keeps_whole_gradients": True}
    assert words in found(setting=setting, **asked)[0]
    refused = found(setting=setting, refused=[OFTEN], **asked)[0]
    assert not any(OFTEN in one for one in refused), "each is planned before it is said"


def test_the_devices_of_a_strategy_with_a_setting_are_fewer_than_those_that_make_one_micro_batch_of_a_step():
    _, elsewhere = found(
        setting={"is_sharded": True, "keeps_whole_gradients": True}, device_bytes=6, num_ranks=4, sequences=24
    )
    assert elsewhere == [(SHARDS, OFTEN, "trainer.devices=6", ALONE)]


def test_another_lever_is_told_with_its_micro_batch_and_several_where_one_is_not_enough():
    here, _ = found(device_bytes=18, num_ranks=1, sequences=24, recomputed=RECOMPUTED)
    assert here == [(EVERY_BLOCK, ALONE)]
    here, _ = found(device_bytes=6.5, num_ranks=4, sequences=24, recomputed=RECOMPUTED)
    assert [one[:2] for one in here] == [(SHARDS, EVERY_BLOCK)]


def test_a_strategy_that_does_not_take_the_model_is_passed_over():
    setting = replace(SETTING, device_bytes=16 * MILLION)
    asked = {"num_ranks": 4, "sequences": 24}
    changes = changes_of(setting, **asked)
    untrained = changes_of(setting, trains=lambda words: SHARDS not in words, **asked)
    assert remedies_here(plan_of(setting, **asked), changes)
    assert not remedies_here(plan_of(setting, **asked), untrained)
    assert not remedies_elsewhere(plan_of(setting, **asked), untrained)


def test_a_change_that_fits_and_does_not_train_hides_no_other_with_it():
    wide = {"facts": replace(SETTING.facts, activations=LinearBytes(fixed=0, per_sequence=2e7))}
    asked = {"setting": wide, "device_bytes": 18, "num_ranks": 4, "sequences": 1, "recomputed": RECOMPUTED}
    assert found(**asked)[0] == [(EVERY_BLOCK,)]
    assert found(**asked, trains=lambda words: SHARDS in words)[0] == [(SHARDS, EVERY_BLOCK)]
