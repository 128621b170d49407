import torch

from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.llama import BlockSettings, LlamaBlock
from lmtrain.models.llama_settings import FeedForwardSettings, NormSettings
from lmtrain.models.rope import RotaryEmbedding
from lmtrain.models.self_attention import AttentionSettings, Positions


def build(*, width=16, feed_forward_width=24, embedding_skip=None):
    settings = BlockSettings(
        attention=AttentionSettings(num_heads=2, kernel=sdpa),
        feed_forward=FeedForwardSettings(width=feed_forward_width),
        norm=NormSettings(),
    )
    block = LlamaBlock(width, settings, embedding_skip=embedding_skip)
    block.initialize_weights(torch.Generator().manual_seed(0), std=0.5, output_std=0.1)
    return block


def run(block, x, embedded):
    stream, penalty = block(x, embedded, Positions(*RotaryEmbedding(8, 8, base=10_000.0)(x.shape[1])))
    assert penalty is None
    return stream


def test_block_of_zero_outputs_is_the_identity():
    block = build()
    block.initialize_weights(torch.Generator().manual_seed(0), std=0.5, output_std=0.0)
    x = torch.randn(2, 5, 16)
    assert torch.equal(run(block, x, x), x)


def test_embedding_skip_brings_the_first_value_back():
    block = build(embedding_skip=(1.0, 0.0))
    x, embedded = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    assert torch.equal(run(block, x, embedded), run(build(), x, embedded))
    block.load_state_dict(
        {"embedding_skip.first": torch.zeros(1), "embedding_skip.second": torch.ones(1)}, strict=False
    )
    torch.testing.assert_close(run(block, x, embedded), run(build(), embedded, embedded))


def test_matrices_start_with_their_own_spreads():
    block = build(width=128, feed_forward_width=256)
    weights = block.state_dict()
    for name, std in (
        ("self_attention.qkv", 0.5),
        ("feed_forward.gate_up", 0.5),
        ("self_attention.output", 0.1),
        ("feed_forward.down", 0.1),
    ):
        assert abs(weights[f"{name}.weight"].std().item() / std - 1) < 0.02
