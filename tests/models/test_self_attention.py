import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.attention import sdpa
from lmtrain.models.rope import RotaryEmbedding
from lmtrain.models.self_attention import SelfAttention


def build(**options):
    return SelfAttention(**({"width": 32, "num_heads": 4, "attention": sdpa} | options))


def test_one_projection_makes_queries_keys_and_values():
    layer = build(num_kv_heads=2)
    assert layer.qkv.weight.shape == ((4 + 2 + 2) * 8, 32)


def test_head_width_may_differ_from_width_over_heads():
    layer = build(width=30, head_width=16)
    cos, sin = RotaryEmbedding(16, 16, base=10_000.0)(6)
    assert layer(torch.randn(2, 6, 30), cos, sin).shape == (2, 6, 30)


def test_normed_queries_and_keys_ignore_the_scale_of_their_projection():
    layer = build(qk_norm=True, qk_norm_scale=1.2)
    cos, sin = RotaryEmbedding(16, 8, base=10_000.0)(6)
    x = torch.randn(2, 6, 32)
    before = layer(x, cos, sin)
    with torch.no_grad():
        layer.qkv.weight[:64] *= 100
    torch.testing.assert_close(layer(x, cos, sin), before, atol=1e-3, rtol=1e-3)


def test_fixed_scale_of_the_norm_sharpens_attention():
    cos, sin = RotaryEmbedding(16, 8, base=10_000.0)(6)
    flat, sharp = build(qk_norm=True, qk_norm_scale=1e-3), build(qk_norm=True, qk_norm_scale=1.0)
    sharp.load_state_dict(flat.state_dict())
    x = torch.randn(1, 6, 32)
    uniform = flat.output(flat.qkv(x)[..., 64:].cumsum(1) / torch.arange(1, 7)[None, :, None])
    torch.testing.assert_close(flat(x, cos, sin), uniform, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(sharp(x, cos, sin), uniform, atol=1e-3)


def test_value_embedding_is_added_to_the_values():
    layer = build(value_embedding=True)
    cos, sin = RotaryEmbedding(1, 8, base=10_000.0)(1)
    x, extra = torch.randn(2, 1, 32), torch.randn(2, 1, 32)
    values = layer.qkv(x)[..., 64:]
    torch.testing.assert_close(layer(x, cos, sin, extra), layer.output(values + extra))


def test_key_smear_lets_a_token_be_found_by_its_successor():
    layer, plain = build(key_smear=True), build()
    plain.load_state_dict(layer.state_dict(), strict=False)
    cos, sin = RotaryEmbedding(16, 8, base=10_000.0)(6)
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(layer(x, cos, sin), plain(x, cos, sin))
    layer.load_state_dict({"key_smear.weight": torch.ones(32)}, strict=False)
    assert not torch.allclose(layer(x, cos, sin)[:, 1:], plain(x, cos, sin)[:, 1:], atol=1e-4)
    torch.testing.assert_close(layer(x, cos, sin)[:, 0], plain(x, cos, sin)[:, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 130}, r"model\.width=130 is not a multiple of model\.num_heads=4; nearest valid: 128 or 132"),
        ({"num_kv_heads": 3}, r"model\.num_heads=4 is not a multiple of model\.num_kv_heads=3; nearest valid: 3 or 6"),
        ({"head_width": 7}, r"model\.head_width=7 is not even"),
        ({"num_heads": 0}, r"model\.num_heads=0 is below 1"),
        ({"qk_norm_scale": 1.2}, r"model\.qk_norm_scale=1\.2 has no effect without model\.qk_norm=true"),
    ],
)
def test_impossible_settings_are_refused_by_key(options, message):
    with pytest.raises(ConfigurationError, match=message):
        build(**options)
