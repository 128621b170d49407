import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.interop.model_settings import build, complete, default_of, node_of, off_default
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts

NODE = node_of(
    Llama, width=16, num_layers=1, num_heads=2, feed_forward_width=8, vocab_size=11, max_context_tokens=4,
    attention={"_target_": "lmtrain.models.attention.auto.auto"}, init_std=0.5,
    experts=node_of(Experts, num_experts=4, num_experts_per_token=2),
)  # fmt: skip


def test_completing_fills_in_the_defaults_of_a_model_and_of_its_parts():
    settings = complete(NODE)
    assert settings["norm_eps"] == 1e-5
    assert settings["experts"]["normalize_weights"] is True


def test_only_what_changes_the_function_counts_as_off_default():
    assert set(off_default(complete(NODE))) == {"experts"}
    assert default_of(complete(NODE), "value_embedding_layers") == []


def test_a_model_is_built_without_memory():
    model = build(NODE)
    assert model.get_parameter("layers.0.feed_forward.gate_up").shape == (4, 16, 16)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_part_of_an_unknown_class_is_named_by_its_key():
    with pytest.raises(ConfigurationError, match=r"model\.experts\._target_=my\.Experts has no counterpart"):
        complete(NODE | {"experts": {"_target_": "my.Experts"}})
