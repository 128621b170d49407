"""Configs as transformers' classes read them; whole folders are compared in test_hf_export.py."""

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.interop.config_reader import DEFAULTS, read_config
from lmtrain.interop.config_writer import write_config
from lmtrain.interop.model_settings import build, complete, node_of
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from tests.interop.test_hf_export import OURS, settings_of

QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": 101,
}


def settings(**changes):
    return read_config(QWEN | changes).settings


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_absent_keys_have_the_defaults_of_transformers(model_type):
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(model_type)
    assert {key: getattr(theirs, key) for key in DEFAULTS[model_type]} == DEFAULTS[model_type] | (
        {"sliding_window": None} if model_type == "qwen3" else {}  # hidden there until use_sliding_window
    )


def test_a_key_that_is_null_is_not_absent():
    mistral = QWEN | {"architectures": ["MistralForCausalLM"], "num_key_value_heads": None}
    assert read_config(mistral).settings["window_tokens"] == 4096
    read = read_config(mistral | {"sliding_window": None}).settings
    assert (read["window_tokens"], read["num_kv_heads"]) == (None, 4)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 8}, (None, None)),  # use_sliding_window is false
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}, (8, "LLS")),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}, (8, None)),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 28}, (None, None)),
        ({"sliding_window": 8, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 3}, (8, None)),
    ],
)
def test_windows_follow_what_each_layer_is_told(changes, windows):
    read = settings(**changes)
    assert (read["window_tokens"], read["window_pattern"]) == windows


def test_a_type_of_no_model_here_is_named():
    with pytest.raises(DataError, match=r"architecture qwen33 is not supported; .* LlamaForCausalLM"):
        read_config(QWEN | {"architectures": None, "model_type": "qwen33"})


@pytest.mark.parametrize(
    ("activation", "approximate"),
    [(None, "tanh"), ("gelu_new", "tanh"), ("gelu_pytorch_tanh", "tanh"), ("gelu", "none")],
)
def test_gpt2_s_activation_is_gelu_by_tanh_or_exact(activation, approximate):
    told = {} if activation is None else {"activation_function": activation}
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 5, "n_positions": 4}
    assert read_config(config | told).settings["gelu_approximate"] == approximate


def test_gpt2_has_one_table():
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 5, "n_positions": 4}
    assert read_config(config).settings["feed_forward_width"] is None
    with pytest.raises(DataError, match="tie_word_embeddings"):
        read_config(config | {"tie_word_embeddings": False})


def test_fewer_kinds_of_layers_than_layers_are_refused():
    with pytest.raises(DataError, match="2 layer_types"):
        settings(sliding_window=8, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"])


@pytest.mark.parametrize("value", ["64", 64.0, True])
def test_a_count_that_is_no_whole_number_is_refused_by_key(value):
    with pytest.raises(DataError, match=r"hidden_size"):
        settings(hidden_size=value)


@pytest.mark.parametrize("name", OURS)
def test_reading_what_was_written_gives_the_same_model(name):

    config = write_config(complete(settings_of(name)))
    read = read_config(config).settings
    assert read_config(config).unread_keys == ()
    assert write_config(complete(read)) == config | {"initializer_range": 0.02}
    ours, again = build(settings_of(name)), build(read)
    shapes = [{name: tensor.shape for name, tensor in model.state_dict().items()} for model in (ours, again)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "option", ["gpt2_124m", "llama_3_1_8b", "qwen_3_0_6b", "mistral_7b", "mixtral_8x7b", "olmoe_1b_7b"]
)
def test_published_shapes_can_be_exported(option):
    from lmtrain.run.compose.compose import compose_config

    config = write_config(complete(compose_config([f"model={option}"])["model"]))
    assert config["model_type"] in option.replace("_", "")


NODE = node_of(
    Llama, width=16, num_layers=1, num_heads=2, feed_forward_width=8, vocab_size=11, max_context_tokens=4,
    attention={"_target_": "lmtrain.models.attention.auto.auto"}, init_std=0.5,
    experts=node_of(Experts, num_experts=4, num_experts_per_token=2),
)  # fmt: skip


def test_a_part_of_an_unknown_class_is_named_by_its_key():
    with pytest.raises(ConfigurationError, match=r"model\.experts\._target_=my\.Experts has no counterpart"):
        complete(NODE | {"experts": {"_target_": "my.Experts"}})
