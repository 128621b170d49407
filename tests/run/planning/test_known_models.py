import json

import pytest

from lmtrain.accounting.model.model_facts import KnownFacts, model_row, table_row
from lmtrain.errors import ConfigurationError
from lmtrain.run.planning import known_models, measured_model
from lmtrain.run.planning.known_models import depth_of, key_of, model_facts
from lmtrain.run.planning.setting import attention_of, planned_setting
from tests.accounting.model.test_depth_facts import facts as of_depth
from tests.accounting.model.test_model_facts import FACTS
from tests.configs import config_of


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path, monkeypatch):
    monkeypatch.setattr(known_models, "TABLE", tmp_path / "none.json")


def config(tmp_path, *words):
    composed = config_of(f"run.cache={tmp_path}", "cluster=h100_8x", *words)
    return composed, planned_setting(composed)


def test_a_model_is_measured_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(measured_model, "measure_models", lambda *_, **__: asked.append(1) or [FACTS])
    for _ in range(2):
        assert model_facts(*config(tmp_path)) == FACTS
    assert len(asked) == 1
    model_facts(*config(tmp_path, "model.width=256"))
    assert len(asked) == 2


def test_the_table_that_ships_comes_first(tmp_path, monkeypatch):
    composed, setting = config(tmp_path)
    table = tmp_path / "table.json"
    known = KnownFacts(facts=FACTS, context_tokens=256, fewest_tokens=256, most_tokens=256)
    rows = {key_of(composed, setting): [table_row(known, model="tiny")]}
    table.write_text(json.dumps({"models": {"tiny": model_row(FACTS)}, "settings": rows}))
    monkeypatch.setattr(known_models, "TABLE", table)
    monkeypatch.setattr(measured_model, "measure_models", None)
    assert model_facts(composed, setting) == FACTS


def test_a_deep_model_is_measured_at_two_depths_once_and_told_at_any(tmp_path, monkeypatch):
    monkeypatch.setattr(
        measured_model,
        "measure_models",
        lambda configs, _: [of_depth(int(one.model.values["num_layers"])) for one in configs],
    )
    assert model_facts(*config(tmp_path, "model.num_layers=9")) == of_depth(9)
    monkeypatch.setattr(measured_model, "measure_models", None)
    assert model_facts(*config(tmp_path, "model.num_layers=2K")) == of_depth(2000)
    varied = ("model.num_layers=8", "model.value_embedding_layers=[8]", "+model.window_pattern=SL", "adapter=lora")
    assert [depth_of(config(tmp_path, "model.num_layers=9", word)[0]) for word in varied] == [None] * 4
    with pytest.raises(ConfigurationError, match=r"num_layers=1e\+30 is beyond 1,000,000 blocks; .*: 1000000"):
        model_facts(*config(tmp_path, "model.num_layers=1e30"))


def test_what_does_not_decide_the_facts_is_not_in_the_key(tmp_path):
    same = ("seed=2", "budget.tokens=5M", "optimizer=adamw", "attention=flash", "cluster.num_nodes=4")
    same += ("+model.backout=false", "model.rope_base=20_000", "model.width=0.128K")
    other = ("model.width=256", "batch.context_tokens=128", "recompute=every_block", "precision=fp32", "compile=none")
    key = key_of(*config(tmp_path))
    assert all(key_of(*config(tmp_path, word)) == key for word in same)
    assert all(key_of(*config(tmp_path, word)) != key for word in other)


def test_a_rounded_residual_stream_is_another_setting_but_where_the_strategy_casts_anyway(tmp_path):
    plain, rounded = ("precision=bf16_mixed",), ("precision=bf16_mixed", "precision.residual=bf16")
    assert key_of(*config(tmp_path, *plain)) != key_of(*config(tmp_path, *rounded))
    plain, rounded = ((*words, "strategy=fsdp") for words in (plain, rounded))
    assert key_of(*config(tmp_path, *plain)) == key_of(*config(tmp_path, *rounded))


def test_on_a_cpu_the_config_s_own_attention_is_measured(tmp_path):
    composed, setting = config(tmp_path, "cluster=local", "attention=blocked")
    assert attention_of(composed, setting).target.startswith("lmtrain.models.attention.blocked.")


def test_on_a_cpu_auto_is_measured_as_it_runs_with_and_without_a_compiler(tmp_path):
    names = [
        attention_of(*config(tmp_path, "cluster=local", word)).target.rpartition(".")[2]
        for word in ("compile=auto", "compile=none")
    ]
    assert names == ["Auto", "Uncompiled"]
