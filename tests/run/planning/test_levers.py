import pytest

from lmtrain.run.planning import levers
from lmtrain.run.planning.known_models import model_facts
from lmtrain.run.planning.levers import levers_of, memory_with, trains
from lmtrain.run.planning.setting import planned_setting
from tests.configs import config_of

CONFIG = config_of("model=gpt2_1558m", "tokenizer=byte_level", "cluster=h100_8x", "strategy=ddp", "optimizer=adamw")
OFTEN = "strategy.reduce_every_micro_step=true"


def facts_of_model(config):
    return model_facts(config, planned_setting(config))


def test_levers_are_named_by_the_facts_of_their_options() -> None:
    found = levers_of(CONFIG, facts_of_model(CONFIG))
    assert not found.settings
    assert {("strategy=fsdp",), ("strategy=fsdp", OFTEN), ("strategy=hsdp",), ("strategy=tensor",)} <= {
        *found.strategies
    }
    assert found.others == [["recompute=every_block"], ["loss=chunked"], ["optimizer_cpu_offload=true"]]
    sharded = config_of("model=gpt2_1558m", "tokenizer=byte_level", "cluster=h100_8x", "strategy=fsdp")
    assert levers_of(sharded, facts_of_model(sharded)).settings == [(OFTEN,)]


def test_a_single_device_has_strategies_on_more_devices_alone() -> None:
    one = config_of("model=gpt2_1558m", "tokenizer=byte_level", "cluster=h100_8x", "cluster.devices_per_node=1")
    found = levers_of(one, facts_of_model(CONFIG))
    assert not found.strategies
    assert {("strategy=fsdp",), ("strategy=fsdp_tensor",)} <= {*found.on_more}
    assert ("strategy=hsdp",) not in found.on_more


def test_memory_of_a_new_model_is_measured_on_demand_alone_and_never_where_its_weights_are_too_large(
    monkeypatch,
) -> None:
    facts = facts_of_model(CONFIG)
    monkeypatch.setattr(levers, "facts_known", lambda *_: None)
    monkeypatch.setattr(levers, "model_facts", lambda *_: facts)
    memory = memory_with(CONFIG, facts)
    assert memory([], measures=False) is not None
    assert memory(["loss=chunked"], measures=False) is None
    assert memory(["loss=chunked"], measures=True) is not None
    assert memory(["loss=chunked"], measures=False) is not None, "known by now"
    assert memory(["strategy=hsdp", "strategy.shard_size=3"], measures=True) is None, "refused"
    monkeypatch.setattr(levers, "model_facts", lambda *_: pytest.fail("measured"))
    small = CONFIG.changed(cluster=CONFIG.values["cluster"] | {"memory_bytes": 10**9})
    assert memory_with(small, facts)(["recompute=every_block"], measures=True) is None


def test_a_strategy_that_cannot_cut_the_model_does_not_train_it() -> None:
    assert trains(CONFIG, ["strategy=fsdp"])
    assert not trains(CONFIG, ["strategy=tensor"])  # 25 heads over 8 ranks
