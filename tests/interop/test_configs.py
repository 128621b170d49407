"""Configs as transformers' classes read them; whole folders are compared in test_hf_export.py."""

import pytest

from lmtrain.errors import DataError
from lmtrain.interop.hf_config import DEFAULTS, read_config, write_config
from lmtrain.interop.model_settings import complete
from tests.interop.families import random_model
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
GPT2_CONFIG = {"architectures": None, "model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 4}


def settings(**changes):
    return read_config(QWEN | changes).settings


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_absent_keys_have_the_defaults_of_transformers(model_type):
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(model_type)
    asked = {key: value for key, value in DEFAULTS[model_type].items() if key != "partial_rotary_factor"}
    hidden = {"qwen2": None, "qwen3": None, "qwen2_moe": 0}  # until use_sliding_window
    assert {key: getattr(theirs, key) for key in asked} == asked | (
        {"sliding_window": hidden[model_type]} if model_type in hidden else {}
    )


NEMOTRON = {
    "model_type": "nemotron_h",
    "num_hidden_layers": 5,
    "tie_word_embeddings": False,
    "time_step_limit": [0.0, float("inf")],
}


@pytest.mark.parametrize(
    "layers",
    [
        {"hybrid_override_pattern": "M-*-M"},
        {"layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"], "hybrid_override_pattern": "M"},
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"]},
    ],
)
def test_the_layers_of_nemotron_h_are_read_in_letters_and_words_of_any_release(layers):
    read = read_config(NEMOTRON | layers).settings
    assert (read["num_layers"], read["recurrent_pattern"]) == (5, "RFAFR")
    written = write_config(complete(read))
    assert written["hybrid_override_pattern"] == "M-*-M"
    assert read_config(written).settings == read


def family_config(name):
    """Return the config of a small random model, as transformers saves it."""
    model = random_model(name, 0)
    return model.config.to_diff_dict() | {"architectures": [type(model).__name__]}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt-oss", {"rope_parameters": None}, "rope_parameters must be given"),
        ("olmo3", {"rope_parameters": None, "rope_local_base_freq": 5.0}, "rope_local_base_freq=5.0 is not supported"),
        ("lfm2", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act=gelu_pytorch_tanh is not supported"),
        ("deepseek v3", {"head_dim": 2}, "head_dim=2 is not supported"),
    ],
)
def test_what_a_class_reads_otherwise_is_refused_by_key(name, changes, message):
    read_config(family_config(name))
    with pytest.raises(DataError, match=message):
        read_config(family_config(name) | changes)


def test_a_null_norm_topk_prob_normalizes_no_weights():
    config = family_config("deepseek v3") | {"norm_topk_prob": None}
    assert not read_config(config).settings["experts"]["normalize_weights"]


def test_experts_of_nemotron_h_are_refused():
    with pytest.raises(DataError, match="layer_types=moe is not supported"):
        read_config(NEMOTRON | {"hybrid_override_pattern": "ME*E"})


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": None, "model_type": "qwen33"}, r"architecture qwen33 is not supported; .* LlamaForCausalLM"),
        ({"sliding_window": 8, "layer_types": ["sliding_attention"] * 2}, "2 layer_types"),
        ({"hidden_size": "64"}, "hidden_size must be"),
        ({"hidden_size": True}, "hidden_size must be"),
        (GPT2_CONFIG | {"tie_word_embeddings": False}, "tie_word_embeddings=false is not supported for GPT-2"),
    ],
)
def test_what_no_model_here_has_is_refused_by_key(changes, message):
    with pytest.raises(DataError, match=message):
        settings(**changes)


@pytest.mark.parametrize(
    ("activation", "approximate"), [(None, "tanh"), ("gelu_pytorch_tanh", "tanh"), ("gelu", "none")]
)
def test_gpt2_s_activation_is_gelu_by_tanh_or_exact(activation, approximate):
    read = read_config({**GPT2_CONFIG, "vocab_size": 101, "activation_function": activation}).settings
    assert read["gelu_approximate"] == approximate


@pytest.mark.parametrize("name", OURS)
def test_reading_what_was_written_gives_the_same_model(name):
    config = write_config(complete(settings_of(name)))
    read = read_config(config).settings
    assert write_config(complete(read)) == config | {"initializer_range": 0.02}
