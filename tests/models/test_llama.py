import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.attention.eager import eager
from lmtrain.models.llama import Llama
from lmtrain.models.residual_stream import SkipStart
from lmtrain.models.rope import RopeScaling


def tiny(**options):
    dimensions = {
        "width": 64,
        "num_layers": 2,
        "num_heads": 4,
        "feed_forward_width": 96,
        "vocab_size": 101,
        "max_context_tokens": 64,
    }
    model = Llama(**(dimensions | options))
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


OPTIONS = {
    "plain": {},
    "grouped heads": {"num_kv_heads": 2},
    "eager attention": {"attention": eager},
    "squared relu": {"activation": "relu_squared"},
    "learned query-key norm": {"qk_norm": True},
    "fixed query-key norm": {"qk_norm": True, "qk_norm_scale": 1.2},
    "attention multiplier": {"attention_multiplier": 0.5},
    "soft cap": {"logit_soft_cap": 15.0},
    "no norm weights": {"norm_weights": False},
    "embedding norm": {"embedding_norm": True},
    "embedding skip": {"embedding_skip": True},
    "embedding smear": {"embedding_smear": True},
    "key smear": {"key_smear": True},
    "bigrams": {"num_bigram_buckets": 32},
    "value embeddings": {"value_embedding_layers": (0, 1)},
    "tied": {"tie_embeddings": True},
    "head width": {"head_width": 32},
    "window": {"window_tokens": 7},
    "window pattern": {"window_tokens": 7, "window_pattern": "SL"},
    "gated smear": {"embedding_smear": True, "smear_gate_width": 8},
    "gated value embeddings": {
        "value_embedding_layers": (1,),
        "value_gate_width": 8,
        "value_embedding_init_std": 0.5,
    },
    "skip starts": {"embedding_skip": True, "embedding_skip_start": SkipStart(first_stream=1.1, last_embedded=0.2)},
    "backout": {"backout": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_later_tokens_change_nothing_before_them(options):
    model = tiny(**options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # so that no option still does nothing
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    tokens = torch.randint(101, (2, 48), generator=generator)
    changed = tokens.clone()
    changed[:, 20:] = torch.randint(101, (2, 28), generator=generator)
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_documents_in_one_row_are_as_if_each_were_alone(options):
    model = tiny(**options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    tokens = torch.randint(101, (2, 32), generator=generator)
    documents = torch.zeros(2, 32, dtype=torch.int32)
    documents[0, 5:], documents[0, 20:], documents[1, 31:] = 1, 2, 1
    packed = model(tokens, documents=documents)
    for row, start, end in ((0, 0, 5), (0, 5, 20), (0, 20, 32), (1, 0, 31), (1, 31, 32)):
        alone = model(tokens[row : row + 1, start:end])[0]
        # fp32, other shapes of the same products.
        torch.testing.assert_close(packed[row, start:end], alone, atol=2e-5, rtol=1e-4)


def test_a_window_hides_what_lies_before_it():
    model = tiny(window_tokens=4, num_layers=1)
    tokens = torch.randint(101, (1, 32), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 3] = (tokens[0, 3] + 1) % 101
    differs = (model(tokens) != model(changed)).any(dim=-1)[0]
    assert differs.nonzero().flatten().tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "name", ["embedding skip", "embedding smear", "gated smear", "key smear", "bigrams", "no norm weights"]
)
def test_option_starts_as_plain_llama(name):
    tokens = torch.randint(101, (2, 16))
    assert torch.equal(tiny(**OPTIONS[name])(tokens), tiny()(tokens))


def test_zero_head_predicts_uniformly():
    assert not tiny(head_init_std=0.0)(torch.randint(101, (1, 8))).any()


def test_zero_outputs_start_every_layer_as_the_identity():
    model = tiny(zero_init_outputs=True)
    tokens = torch.randint(101, (1, 8))
    assert torch.equal(model.hidden_states(tokens), model.final_norm(model.embedding(tokens)))


def test_embedding_norm_makes_the_spread_of_embeddings_irrelevant():
    tokens = torch.randint(101, (1, 8))
    small, large = (tiny(embedding_norm=True, embedding_init_std=std)(tokens) for std in (1.0, 100.0))
    torch.testing.assert_close(small, large, atol=1e-4, rtol=1e-4)


def test_soft_cap_bounds_logits():
    model = tiny(logit_soft_cap=2.0, init_std=1.0)
    assert model(torch.randint(101, (1, 8))).abs().max() <= 2.0


def test_published_llama_3_2_1b_has_its_published_counts():
    with torch.device("meta"):
        model = Llama(
            width=2048,
            num_layers=16,
            num_heads=32,
            num_kv_heads=8,
            feed_forward_width=8192,
            vocab_size=128_256,
            max_context_tokens=131_072,
            rope_scaling=RopeScaling(),
            tie_embeddings=True,
        )
    shape = model.shape()
    assert shape.num_parameters == 1_235_814_400
    assert shape.num_parameters - shape.num_embedding_parameters == 973_146_112
    assert sum(parameter.numel() for parameter in model.blocks[0].parameters()) == 60_821_504
    assert shape.num_matmul_parameters == 1_235_814_400 - 33 * 2048  # the norms multiply no matrix


def test_a_wider_llama_has_the_known_count():
    with torch.device("meta"):
        twelve_d_squared = Llama(
            width=2048,
            num_layers=24,
            num_heads=16,
            feed_forward_width=8 * 2048 // 3 + 1,
            vocab_size=32_000,
            max_context_tokens=16,
        ).blocks
    matrices = sum(p.numel() for p in twelve_d_squared.parameters() if p.ndim == 2)
    assert matrices == pytest.approx(1_207_959_552, rel=1e-3)  # 12 d^2 a layer, up to the rounding of 8/3 d


def test_tying_saves_one_table():
    with torch.device("meta"):
        sizes = [
            tiny_meta(tie_embeddings=tied, width=1024, vocab_size=50_257).shape().num_parameters
            for tied in (False, True)
        ]
    assert sizes[0] - sizes[1] == 51_463_168


def tiny_meta(**options):
    return Llama(**({"num_layers": 1, "num_heads": 4, "feed_forward_width": 96, "max_context_tokens": 8} | options))


def test_a_context_beyond_the_rotations_is_refused():
    with pytest.raises(ConfigurationError, match=r"batch\.context_tokens=65 is over model\.max_context_tokens=64"):
        tiny()(torch.zeros(1, 65, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 130}, r"130 is not a multiple of model\.num_heads=4; nearest valid: model\.width=128 or 136, or "),
        ({"num_layers": 0}, r"model\.num_layers=0 is below 1"),
        (
            {"value_embedding_layers": (0, 2)},
            r"\.value_embedding_layers=\[0, 2\] names layer 2 .*nearest valid: 'model\.value_embedding_layers=\[0\]'",
        ),
        ({"tie_embeddings": True, "head_init_std": 0.0}, r"model\.head_init_std=0\.0 needs a head of its own"),
        ({"init_std": -0.1}, r"model\.init_std=-0\.1 is below 0; nearest valid: 0"),
        ({"head_width": 7}, r"model\.head_width=7 is not even, as rotary pairs are; nearest valid: 8"),
        (
            {"num_kv_heads": 3},
            r"4 is not a multiple of model\.num_kv_heads=3; nearest valid: model\.num_kv_heads=2 or 4",
        ),
        ({"window_tokens": 4, "window_pattern": "SXL"}, r"model\.window_pattern='SXL' .* nearest valid: SL"),
        (
            {"value_embedding_layers": (1,), "value_gate_width": 65},
            r"model\.value_gate_width=65 is not 1 to model\.width=64 dimensions; nearest valid: 64",
        ),
        ({"rope_base": 0.0}, r"model\.rope_base=0\.0 is not above 0 and finite; nearest valid: 10000\.0"),
        ({"norm_eps": -1.0}, r"model\.norm_eps=-1\.0 is below 0; nearest valid: 0"),
        ({"norm_eps": float("nan")}, r"model\.norm_eps=nan is not a finite number; nearest valid: 0"),
        (
            {"qk_norm": True, "qk_norm_scale": float("nan")},
            r"model\.qk_norm_scale=nan is not above 0 and finite; nearest valid: 1\.0",
        ),
        ({"logit_soft_cap": 0.0}, r"model\.logit_soft_cap=0\.0 is not above 0"),
        ({"num_bigram_buckets": -1}, r"model\.num_bigram_buckets=-1 is below 0"),
        ({"activation": "gelu"}, r"model\.activation=gelu is not swiglu or relu_squared"),
    ],
)
def test_impossible_settings_are_refused_by_key(options, message):
    with pytest.raises(ConfigurationError, match=message):
        tiny(**options)
