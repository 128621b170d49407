import pytest
import torch
from torch.utils._pytree import tree_map

from lmtrain.errors import ConfigurationError
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


def test_a_gate_reads_the_token_and_weighs_its_value_embedding_per_head():
    layer = build(value_embedding=True, value_gate_width=2)
    positions = Positions(*RotaryEmbedding(1, 8, base=10_000.0)(1))
    x, extra = torch.randn(2, 1, 32), torch.randn(2, 1, 32)
    assert layer.value_gate is not None
    gate = 2 * torch.sigmoid(x[..., :2] @ layer.value_gate.weight.T).repeat_interleave(8, dim=-1)  # a head is 8 wide
    expected = layer.output(layer.qkv(x)[..., 64:] + gate * extra)
    torch.testing.assert_close(layer(x, positions, extra), expected)


def test_key_smear_lets_a_token_be_found_by_its_successor():
    layer, plain = build(key_smear=True), build()
    plain.load_state_dict(layer.state_dict(), strict=False)
    positions = Positions(*RotaryEmbedding(16, 8, base=10_000.0)(6))
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(layer(x, positions), plain(x, positions))
    layer.load_state_dict({"key_smear.weight": torch.ones(32)}, strict=False)
    assert not torch.allclose(layer(x, positions)[:, 1:], plain(x, positions)[:, 1:], atol=1e-4)
    torch.testing.assert_close(layer(x, positions)[:, 0], plain(x, positions)[:, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 130}, r"130 is not a multiple of model\.num_heads=4; nearest valid: model\.width=128 or 136, or "),
        (
            {"num_kv_heads": 3},
            r"4 is not a multiple of model\.num_kv_heads=3; nearest valid: model\.num_kv_heads=2 or 4",
        ),
        ({"head_width": 7}, r"model\.head_width=7 is not even"),
        ({"num_heads": 0}, r"model\.num_heads=0 is below 1"),
    ],
)
def test_impossible_settings_are_refused_by_key(options, message):
    with pytest.raises(ConfigurationError, match=message):
        build(**options)


def test_what_fsdp_does_to_the_inputs_of_a_block_leaves_rotations_in_fp32():
    positions = Positions(*RotaryEmbedding(16, 8, base=10_000.0)(6))
    _, cast = tree_map(lambda x: x.bfloat16() if isinstance(x, torch.Tensor) else x, (torch.ones(2), positions))
    assert cast.cos.dtype == torch.float32


def test_a_multiplier_of_scores_is_a_wider_or_a_narrower_root():
    """Scores x 2 are scores of queries x 2, at the same values."""
    plain, doubled = build(), build(multiplier=2.0)
    doubled.load_state_dict(plain.state_dict())
    positions = Positions(*RotaryEmbedding(16, 8, base=10_000.0)(6))
    x = torch.randn(2, 6, 32)
    assert not torch.allclose(doubled(x, positions), plain(x, positions))
    with torch.no_grad():
        plain.qkv.weight[:32] *= 2
    torch.testing.assert_close(doubled(x, positions), plain(x, positions))


def test_sharding_passes_rotations_on_in_fp32():
    """FSDP rounds a block's inputs by this function, inside of tuples and dataclasses too."""
    from torch.distributed.utils import _apply_to_tensors

    positions = Positions(*RotaryEmbedding(16, 8, base=10_000.0)(6))
    x, passed = _apply_to_tensors(lambda tensor: tensor.bfloat16(), (torch.zeros(2), positions))
    assert x.dtype == torch.bfloat16
    assert passed.cos.dtype == passed.sin.dtype == torch.float32
