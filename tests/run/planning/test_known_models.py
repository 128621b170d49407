import json

import pytest

from lmtrain.accounting.model.model_facts import KnownFacts, model_row, table_row
from lmtrain.errors import ConfigurationError
from lmtrain.run.planning import known_models, measured_model
from lmtrain.run.planning.known_models import depth_of, key_of, model_facts
from lmtrain.run.planning.setting import planned_setting
from tests.accounting.model.test_depth_facts import facts as of_depth
from tests.accounting.model.test_model_facts import FACTS
from tests.configs import config_of


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path, monkeypatch):
    monkeypatch.setattr(known_models, "TABLE", tmp_path / "none.json")


def config(tmp_path, *words):
    composed = config_of(f"run.cache={tmp_path}", "cluster=h100_8x", *words)
    return composed, planned_setting(composed)


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
    with pytest.raises(ConfigurationError, match=r"num_layers must be at most 1,000,000 blocks"):
        model_facts(*config(tmp_path, "model.num_layers=1e30"))
