import pytest

from lmtrain.errors import DataError
from lmtrain.interop.config_reader import read_config

QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": 101,
}


def settings(**changes):
    return read_config(QWEN | changes).settings


def test_what_is_left_out_has_the_defaults_of_its_family():
    read = settings()
    assert (read["head_width"], read["num_kv_heads"], read["rope_base"], read["tie_embeddings"]) == (128, 4, 1e4, False)


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


def test_a_type_stands_in_for_a_missing_architecture():
    assert read_config(QWEN | {"architectures": None, "model_type": "qwen3"}).model_type == "qwen3"


def test_a_type_of_no_model_here_is_named():
    with pytest.raises(DataError, match=r"architecture qwen33, which no model here computes; .* LlamaForCausalLM"):
        read_config(QWEN | {"architectures": None, "model_type": "qwen33"})


def test_an_older_key_of_the_rotation_type_is_read():
    scaling = settings(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2})["rope_scaling"]
    assert scaling == {"_target_": "lmtrain.models.rope.LinearRopeScaling", "factor": 2.0}


@pytest.mark.parametrize("theta", [1e4, None])
def test_both_styles_may_stand_side_by_side_when_they_agree(theta):
    read = settings(rope_theta=theta, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    assert read["rope_base"] == 1e4


@pytest.mark.parametrize(
    ("activation", "approximate"),
    [(None, "tanh"), ("gelu_new", "tanh"), ("gelu_pytorch_tanh", "tanh"), ("gelu", "none")],
)
def test_gpt2_s_activation_is_gelu_by_tanh_or_exact(activation, approximate):
    told = {} if activation is None else {"activation_function": activation}
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 5, "n_positions": 4}
    assert read_config(config | told).settings["gelu_approximate"] == approximate


def test_gpt2_with_another_activation_is_refused():
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 5, "n_positions": 4}
    with pytest.raises(DataError, match=r"activation_function=relu, which GPT-2 here has not; known: gelu_new, gelu, "):
        read_config(config | {"activation_function": "relu"})


def test_gpt2_has_one_table():
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 5, "n_positions": 4}
    assert read_config(config).settings["feed_forward_width"] is None
    with pytest.raises(DataError, match="one table for both"):
        read_config(config | {"tie_word_embeddings": False})


def test_fewer_kinds_of_layers_than_layers_are_refused():
    with pytest.raises(DataError, match=r"2 layer_types for num_hidden_layers=3"):
        settings(sliding_window=8, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"])


@pytest.mark.parametrize("value", ["64", 64.0, True])
def test_a_count_that_is_no_whole_number_is_refused_by_key(value):
    with pytest.raises(DataError, match=r"hidden_size=.* is no whole number"):
        settings(hidden_size=value)
