"""The references are transformers' attention layers of DeepSeek V2 and V3."""

import pytest
import torch

from lmtrain.models.attention.eager import eager
from lmtrain.models.latent_attention import LatentAttention, LatentWidths
from lmtrain.models.rope import RotaryEmbedding
from lmtrain.models.self_attention import AttentionSettings, Positions

WIDTH, NUM_HEADS, NUM_TOKENS = 32, 4, 11
NAMES = {
    "query": "q_proj",
    "query_down": "q_a_proj",
    "query_norm": "q_a_layernorm",
    "query_up": "q_b_proj",
    "latent_down": "kv_a_proj_with_mqa",
    "latent_norm": "kv_a_layernorm",
    "latent_up": "kv_b_proj",
    "output": "o_proj",
}


def deepseek(version, widths):
    import transformers
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

    config = getattr(transformers, f"DeepseekV{version}Config")(
        hidden_size=WIDTH,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        q_lora_rank=widths.query_latent,
        kv_lora_rank=widths.latent,
        qk_nope_head_dim=widths.unrotated,
        qk_rope_head_dim=widths.rotated,
        v_head_dim=widths.value,
    )
    config._attn_implementation = "eager"
    module = v2 if version == 2 else v3
    torch.manual_seed(0)
    layer = getattr(module, f"DeepseekV{version}Attention")(config, 0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.3).add_(1.0 if parameter.ndim == 1 else 0.0)
    return layer, getattr(module, f"DeepseekV{version}RotaryEmbedding")(config)


def pairs_of(ours, theirs):
    for name, other in NAMES.items():
        if getattr(ours, name) is not None:
            yield getattr(ours, name).weight, getattr(theirs, other).weight


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "widths",
    [
        LatentWidths(latent=12, unrotated=8, rotated=4, value=8, query_latent=10),
        LatentWidths(latent=8, unrotated=6, rotated=2, value=14),  # wider values than keys
    ],
)
def test_outputs_and_gradients_equal_those_of_deepseek(version, widths):
    theirs, rotary = deepseek(version, widths)
    settings = AttentionSettings(num_heads=NUM_HEADS, kernel=eager, rotary_neighbours=True)
    ours = LatentAttention(WIDTH, settings, widths)
    with torch.no_grad():
        for weight, other in pairs_of(ours, theirs):
            weight.copy_(other)
    x = torch.randn(2, NUM_TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    ours_in, theirs_in = x.clone().requires_grad_(), x.clone().requires_grad_()
    places = torch.arange(NUM_TOKENS)[None]
    hidden = torch.full((NUM_TOKENS, NUM_TOKENS), float("-inf")).triu(1)[None, None]
    expected = theirs(theirs_in, position_embeddings=rotary(theirs_in, places), attention_mask=hidden)[0]
    rope = RotaryEmbedding(NUM_TOKENS, widths.rotated, base=10_000.0)
    made = ours(ours_in, Positions(*rope(NUM_TOKENS)))
    torch.testing.assert_close(made, expected, atol=5e-6, rtol=1e-5)  # fp32, another order of sums
    made.square().mean().backward()
    expected.square().mean().backward()
    torch.testing.assert_close(ours_in.grad, theirs_in.grad, atol=5e-6, rtol=1e-5)
    for weight, other in pairs_of(ours, theirs):
        torch.testing.assert_close(weight.grad, other.grad, atol=5e-6, rtol=1e-4)
