import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.attention import eager
from lmtrain.models.llama import Llama
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


@pytest.mark.parametrize("name", ["embedding skip", "embedding smear", "key smear", "bigrams", "no norm weights"])
def test_option_starts_as_plain_llama(name):
    tokens = torch.randint(101, (2, 16))
    assert torch.equal(tiny(**OPTIONS[name])(tokens), tiny()(tokens))


def test_zero_head_predicts_uniformly():
    assert not tiny(zero_init_head=True)(torch.randint(101, (1, 8))).any()


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


# What transformers calls each of our tensors; fused projections are split.
def to_transformers(model):
    state = model.state_dict()
    renamed = {
        "model.embed_tokens.weight": state["embedding.token.weight"],
        "model.norm.weight": state["final_norm.weight"],
    }
    renamed["lm_head.weight"] = state.get("head.weight", state["embedding.token.weight"])
    for layer in range(len(model.layers)):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        fused = state[ours + "self_attention.qkv.weight"].split(model.layers[0].self_attention.widths)
        gate, up = state[ours + "feed_forward.gate_up.weight"].chunk(2)
        renamed |= {
            theirs + "self_attn.q_proj.weight": fused[0],
            theirs + "self_attn.k_proj.weight": fused[1],
            theirs + "self_attn.v_proj.weight": fused[2],
            theirs + "self_attn.o_proj.weight": state[ours + "self_attention.output.weight"],
            theirs + "mlp.gate_proj.weight": gate,
            theirs + "mlp.up_proj.weight": up,
            theirs + "mlp.down_proj.weight": state[ours + "feed_forward.down.weight"],
            theirs + "input_layernorm.weight": state[ours + "attention_norm.weight"],
            theirs + "post_attention_layernorm.weight": state[ours + "feed_forward_norm.weight"],
        }
        if ours + "self_attention.q_norm.weight" in state:
            renamed[theirs + "self_attn.q_norm.weight"] = state[ours + "self_attention.q_norm.weight"]
            renamed[theirs + "self_attn.k_norm.weight"] = state[ours + "self_attention.k_norm.weight"]
    return renamed


def reference_config(model, **settings):
    attention = model.layers[0].self_attention
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.embedding.token.embedding_dim,
        "intermediate_size": model.layers[0].feed_forward.down.in_features,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_width,
        "max_position_embeddings": model.max_context_tokens,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": model.head is None,
        "attn_implementation": "eager",
    } | settings


PLAIN_ROPE = {"rope_type": "default", "rope_theta": 500_000.0}
SCALED_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("options", "rope"),
    [
        ({}, PLAIN_ROPE),
        ({"num_kv_heads": 2}, PLAIN_ROPE),
        ({"num_kv_heads": 1, "tie_embeddings": True, "num_layers": 3}, PLAIN_ROPE),
        ({"head_width": 32, "width": 48}, PLAIN_ROPE),
        ({"num_kv_heads": 2, "rope_scaling": RopeScaling(), "tie_embeddings": True}, SCALED_ROPE),
    ],
)
def test_logits_and_gradients_equal_those_of_transformers(options, rope):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = tiny(init_std=0.1, **options)
    reference = LlamaForCausalLM(LlamaConfig(**reference_config(model, rope_parameters=rope)))
    assert_parity(model, reference)


def test_query_key_norm_equals_that_of_qwen_3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = tiny(init_std=0.1, num_kv_heads=2, qk_norm=True)
    with torch.no_grad():
        for block in model.blocks:
            torch.nn.init.uniform_(block.self_attention.q_norm.weight, 0.5, 2.0)
            torch.nn.init.uniform_(block.self_attention.k_norm.weight, 0.5, 2.0)
    assert_parity(model, Qwen3ForCausalLM(Qwen3Config(**reference_config(model, rope_parameters=PLAIN_ROPE))))


def assert_parity(model, reference):
    reference.load_state_dict(to_transformers(model))
    tokens = torch.randint(model.vocab_size, (2, 33), generator=torch.Generator().manual_seed(2))
    logits, expected = model(tokens), reference(tokens).logits
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)  # fp32, another order of sums
    logits.square().mean().backward()
    expected.square().mean().backward()
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    for name, gradient in to_transformers(model).items():
        if name in theirs:
            torch.testing.assert_close(gradient, theirs[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 130}, r"model\.width=130 is not a multiple of model\.num_heads=4; nearest valid: 128 or 132"),
        ({"num_layers": 0}, r"model\.num_layers=0 is below 1"),
        (
            {"value_embedding_layers": (0, 2)},
            r"model\.value_embedding_layers=\[0, 2\] names layer 2 .*layers are 0 to 1",
        ),
        ({"tie_embeddings": True, "zero_init_head": True}, r"model\.zero_init_head=true needs a head of its own"),
        ({"logit_soft_cap": 0.0}, r"model\.logit_soft_cap=0\.0 is not above 0"),
        ({"num_bigram_buckets": -1}, r"model\.num_bigram_buckets=-1 is below 0"),
        ({"activation": "gelu"}, r"model\.activation=gelu is not swiglu or relu_squared"),
    ],
)
def test_impossible_settings_are_refused_by_key(options, message):
    with pytest.raises(ConfigurationError, match=message):
        tiny(**options)
