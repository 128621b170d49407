"""Configs as transformers' own classes read them; whole folders are compared in test_hf_export.py."""

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.interop.config_reader import read_config
from lmtrain.interop.config_writer import ARCHITECTURES, write_config
from lmtrain.interop.model_settings import complete
from tests.interop.test_hf_export import OURS, settings_of


@pytest.mark.parametrize("name", OURS)
def test_reading_what_was_written_gives_the_same_model(name):
    from lmtrain.interop.model_settings import build

    config = write_config(complete(settings_of(name)))
    read = read_config(config).settings
    assert read_config(config).unread_keys == ()
    assert write_config(complete(read)) == config | {"initializer_range": 0.02}
    ours, again = build(settings_of(name)), build(read)
    shapes = [{name: tensor.shape for name, tensor in model.state_dict().items()} for model in (ours, again)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_every_architecture_is_one_of_transformers(model_type):
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] == ARCHITECTURES[model_type]
    assert AutoConfig.for_model(model_type).model_type == model_type


def test_the_default_model_is_refused_with_all_its_options():
    from lmtrain.run.compose.compose import compose_config

    with pytest.raises(ConfigurationError) as refusal:
        write_config(complete(compose_config(["model=llama_tiny", "tokenizer=byte_level"])["model"]))
    for option in ("activation", "num_bigram_buckets", "key_smear", "embedding_smear", "value_embedding_layers"):
        assert f"model.{option}=" in str(refusal.value)
    assert "model=qwen_3_0_6b" in str(refusal.value)


@pytest.mark.parametrize(
    "option", ["gpt2_124m", "llama_3_1_8b", "qwen_3_0_6b", "mistral_7b", "mixtral_8x7b", "olmoe_1b_7b"]
)
def test_published_shapes_can_be_exported(option):
    from lmtrain.run.compose.compose import compose_config

    config = write_config(complete(compose_config([f"model={option}"])["model"]))
    assert config["model_type"] in option.replace("_", "")
