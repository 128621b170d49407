import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.rope import LinearRopeScaling, RopeScaling, RotaryEmbedding, rope_frequencies, rotate


def test_rotation_keeps_lengths():
    x = torch.randn(2, 16, 3, 8)
    rotated = rotate(x, *RotaryEmbedding(16, 8, base=10_000.0)(16))
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))


def test_scores_depend_on_distance_only():
    cos, sin = RotaryEmbedding(64, 16, base=10_000.0)(64)
    q, k = torch.randn(16), torch.randn(16)
    queries = rotate(q.expand(1, 64, 1, 16), cos, sin)[0, :, 0]
    keys = rotate(k.expand(1, 64, 1, 16), cos, sin)[0, :, 0]
    scores = queries @ keys.T
    # fp32 angles up to 64 radians.
    torch.testing.assert_close(scores[10, 3], scores[60, 53], atol=1e-4, rtol=1e-4)


def test_first_token_is_not_rotated():
    x = torch.randn(1, 1, 1, 8)
    assert torch.equal(rotate(x, *RotaryEmbedding(4, 8, base=10_000.0)(1)), x)


@pytest.mark.parametrize("head_width", [32, 64, 128])
def test_scaled_frequencies_equal_those_of_transformers(head_width):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=head_width * 4,
        num_attention_heads=4,
        max_position_embeddings=131_072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    frequencies = rope_frequencies(head_width, base=500_000.0, scaling=RopeScaling())
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)


def test_scaling_leaves_fast_rotations_alone_and_stretches_slow_ones():
    plain = rope_frequencies(64, base=500_000.0)
    scaled = rope_frequencies(64, base=500_000.0, scaling=RopeScaling())
    assert torch.equal(scaled[:8], plain[:8])
    torch.testing.assert_close(scaled[-4:], plain[-4:] / 32)


def test_linear_scaling_divides_every_position():
    stretched = RotaryEmbedding(64, 16, base=10_000.0, scaling=LinearRopeScaling(factor=4.0))
    plain = RotaryEmbedding(16, 16, base=10_000.0)
    torch.testing.assert_close(stretched.cos[::4], plain.cos)
    torch.testing.assert_close(stretched.sin[::4], plain.sin)


def test_rotations_of_documents_start_at_the_first_in_each():
    rope = RotaryEmbedding(8, 4, base=10_000.0)
    cos, sin = rope(5, torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]))
    assert cos.shape == (2, 5, 1, 2)
    assert torch.equal(sin[0, :, 0], rope.sin[[0, 1, 0, 1, 2]])
    assert torch.equal(cos[1, :, 0], rope.cos[:5])


def test_tables_are_filled_again_after_to_empty():
    with torch.device("meta"):
        rope = RotaryEmbedding(8, 4, base=10_000.0)
    rope.to_empty(device="cpu")
    rope.cos.fill_(float("nan"))
    rope.initialize_weights()
    expected = RotaryEmbedding(8, 4, base=10_000.0)
    assert torch.equal(rope.cos, expected.cos)
    assert torch.equal(rope.sin, expected.sin)


def test_tables_are_no_part_of_a_checkpoint():
    assert RotaryEmbedding(8, 4, base=10_000.0).state_dict() == {}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RopeScaling(factor=0.0), r"factor=0\.0 is not above 0 and finite; nearest valid: 1\.0"),
        (lambda: LinearRopeScaling(factor=float("inf")), r"factor=inf is not above 0 and finite; nearest valid: 1\.0"),
        (lambda: RopeScaling(original_context_tokens=0), r"original_context_tokens=0 is not above 0"),
        (
            lambda: RopeScaling(low_frequency_factor=2.0, high_frequency_factor=2.0),
            r"high_frequency_factor=2\.0 is not above model\.rope_scaling\.low_frequency_factor=2\.0; .* 8\.0",
        ),
    ],
)
def test_scalings_without_a_rotation_are_refused_by_key(build, message):
    with pytest.raises(ConfigurationError, match=rf"^model\.rope_scaling\.{message}"):
        build()
