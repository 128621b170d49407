import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.planning import known_models, measured_model
from lmtrain.run.planning.known_models import depth_of, model_facts
from lmtrain.run.planning.setting import planned_setting
from tests.accounting.model.test_depth_facts import facts as of_depth
from tests.configs import config_of


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path, monkeypatch):
    monkeypatch.setattr(known_models, "TABLE", tmp_path / "none.json")


def config(tmp_path, *words):
    composed = config_of(f"run.cache={tmp_path}", "cluster=h100_8x", *words)
    return composed, planned_setting(composed)


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
