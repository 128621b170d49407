import torch

from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.rope import RotaryEmbedding
from lmtrain.models.self_attention import AttentionSettings, Positions, QueryKeyNorm, SelfAttention


def build(*, width=32, window_tokens=None, value_embedding=False, **options):
    settings = AttentionSettings(**({"num_heads": 4, "kernel": sdpa} | options))
    return SelfAttention(width, settings, window_tokens=window_tokens, value_embedding=value_embedding)


def test_normed_queries_and_keys_ignore_the_scale_of_their_projection():
    layer = build(qk_norm=QueryKeyNorm(is_on=True, scale=1.2))
    positions = Positions(*RotaryEmbedding(16, 8, base=10_000.0)(6))
    x = torch.randn(2, 6, 32)
    before = layer(x, positions)
    with torch.no_grad():
        layer.qkv.weight[:64] *= 100
    torch.testing.assert_close(layer(x, positions), before, atol=1e-3, rtol=1e-3)


def test_key_smear_lets_a_token_be_found_by_its_successor():
    layer, plain = build(key_smear=True), build()
    plain.load_state_dict(layer.state_dict(), strict=False)
    positions = Positions(*RotaryEmbedding(16, 8, base=10_000.0)(6))
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(layer(x, positions), plain(x, positions))
    layer.load_state_dict({"key_smear.weight": torch.ones(32)}, strict=False)
    assert not torch.allclose(layer(x, positions)[:, 1:], plain(x, positions)[:, 1:], atol=1e-4)
    torch.testing.assert_close(layer(x, positions)[:, 0], plain(x, positions)[:, 0])


def test_sharding_passes_rotations_on_in_fp32():
    """FSDP rounds a block's inputs by this function, inside of tuples and dataclasses too."""
    from torch.distributed.utils import _apply_to_tensors

    positions = Positions(*RotaryEmbedding(16, 8, base=10_000.0)(6))
    x, passed = _apply_to_tensors(lambda tensor: tensor.bfloat16(), (torch.zeros(2), positions))
    assert x.dtype == torch.bfloat16
    assert passed.cos.dtype == passed.sin.dtype == torch.float32
