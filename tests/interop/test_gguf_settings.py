import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.interop.gguf_settings import require_computed_there, rotation_factors

FINE = (
    {"model_type": "gpt2", "activation_function": "gelu_new"},
    {"model_type": "llama"},
    {"model_type": "qwen3", "sliding_window": 4, "use_sliding_window": False},
    {"model_type": "qwen3_moe", "norm_topk_prob": True},
)
REFUSED = {
    r"gelu_approximate=none .*cannot be a GGUF file: .*`lmtrain export hf`": {
        "model_type": "gpt2",
        "activation_function": "gelu",
    },
    r"model\.window_tokens=4 cannot": {"model_type": "mistral", "sliding_window": 4},
    r"normalize_weights=false cannot be .* normalizes the experts": {
        "model_type": "qwen3_moe",
        "norm_topk_prob": False,
    },
    r"normalize_weights=true cannot .* does not normalize": {"model_type": "olmoe", "norm_topk_prob": True},
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_model_that_llama_cpp_computes_otherwise_is_refused(said):
    with pytest.raises(ConfigurationError, match=said):
        require_computed_there(REFUSED[said])


def test_others_pass():
    for config in FINE:
        require_computed_there(config)
    assert rotation_factors({"rope_parameters": {"rope_type": "default"}}) is None
