"""Weights at the start: sound from 2 layers to 48, and all there, whatever the options."""

import pytest
import torch

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.scaling_laws import depth_scaling as nano_dial
from lmtrain.errors import ConfigurationError
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models import nano as nano_module
from lmtrain.models.attention.eager import eager
from lmtrain.models.base import LanguageModel
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.nano import nano
from lmtrain.models.residual_stream import SkipStart
from lmtrain.models.rope import LinearRopeScaling, RopeScaling

EVERY_OPTION = {
    "activation": "relu_squared",
    "qk_norm": True,
    "qk_norm_scale": 1.2,
    "logit_soft_cap": 15.0,
    "embedding_skip": True,
    "embedding_smear": True,
    "key_smear": True,
    "num_bigram_buckets": 64,
    "value_embedding_layers": (0, 2),
    "norm_weights": False,
    "embedding_norm": True,
    "embedding_init_std": 1.0,
    "zero_init_outputs": True,
    "head_init_std": 0.0,
}


def tiny_llama(**options):
    dimensions = {
        "width": 32,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "feed_forward_width": 48,
        "vocab_size": 61,
        "max_context_tokens": 32,
    }
    return Llama(**(dimensions | options))


def tiny_gpt2():
    return GPT2(width=32, num_layers=2, num_heads=4, vocab_size=61, max_context_tokens=32)


BUILDERS = {
    "llama": tiny_llama,
    "llama tied": lambda: tiny_llama(tie_embeddings=True),
    "llama with every option": lambda: tiny_llama(**EVERY_OPTION),
    "llama with learned query-key norm": lambda: tiny_llama(qk_norm=True),
    "llama with linearly stretched rotations": lambda: tiny_llama(rope_scaling=LinearRopeScaling(factor=4.0)),
    "llama with windows": lambda: tiny_llama(window_tokens=8, window_pattern="SL"),
    "nano": lambda: nano(depth=3, vocab_size=61, max_context_tokens=32),
    "mixture of experts": lambda: tiny_llama(
        experts=Experts(num_experts=4, num_experts_per_token=2, load_balance_weight=0.01)
    ),
    "gpt2": tiny_gpt2,
}


@pytest.fixture(params=BUILDERS.values(), ids=BUILDERS.keys())
def build(request):
    return request.param


def filled(build, seed=0) -> LanguageModel:
    model = build()
    model.initialize_weights(torch.Generator().manual_seed(seed))
    return model


def test_nothing_stays_unfilled_after_meta_and_to_empty(build):
    with torch.device("meta"):
        model = build()
    model.to_empty(device="cpu")
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.fill_(float("nan"))
    model.initialize_weights(torch.Generator().manual_seed(0))
    assert [name for name, tensor in tensors.items() if tensor.isnan().any()] == []
    reference = dict(filled(build).named_parameters()) | dict(filled(build).named_buffers())
    for name, tensor in tensors.items():
        assert torch.equal(tensor, reference[name]), name


def test_every_parameter_gets_a_gradient_after_some_steps(build):
    model = filled(build)
    tokens = torch.randint(61, (4, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):  # what starts at zero passes nothing back at first: head, outputs, value tables
        optimizer.zero_grad()
        total = model(tokens, tokens, CrossEntropy())
        (total.objective / total.num_tokens).backward()
        optimizer.step()
    unused = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert unused == []


def test_shape_counts_every_parameter_once(build):
    model = build()
    shape = model.shape()
    assert shape.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert len(shape.attention) == len(model.blocks)
    with torch.device("meta"):
        assert build().shape() == shape


def test_flops_agree_with_the_counter_of_torch(build):
    from torch.utils.flop_counter import FlopCounterMode

    if any(layer.window_tokens is not None for layer in build().shape().attention):
        pytest.skip("the counter sees a masked product of all pairs where a window is counted as its own length")
    with torch.device("meta"):
        model = build()
        tokens = torch.zeros(2, 32, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            model(tokens)
    expected = 3 * counter.get_total_flops() / tokens.numel()
    assert flops_per_token(model.shape(), 32).palm == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama tied", "llama with every option", "gpt2"])
def test_forward_and_backward_compile_into_one_graph(name):
    model = filled(BUILDERS[name])
    with torch.no_grad():
        for parameter in model.parameters():  # away from zero starts
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    model.train()
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")  # one graph is the claim
    # With some draws the one gradient of a scalar cancels to 1e-5, of which bf16's roundings are a fifth.
    tokens = torch.randint(61, (2, 32), generator=torch.Generator().manual_seed(7))

    def gradients(function):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total = function(tokens, tokens, CrossEntropy(z_loss_weight=1e-4))
        (total.objective / total.num_tokens).backward()
        return total.nats, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    nats, eager_gradients = gradients(model)
    compiled_nats, compiled_gradients = gradients(compiled)
    torch.testing.assert_close(compiled_nats, nats, rtol=5e-3, atol=0)
    for plain, fused in zip(eager_gradients, compiled_gradients, strict=True):
        assert (plain - fused).norm() <= 0.05 * plain.norm() + 1e-6  # rounded to bf16 at other places


@pytest.mark.parametrize(
    ("width", "num_layers", "num_heads", "expected"), [(768, 12, 12, 124_439_808), (1600, 48, 25, 1_557_611_200)]
)
def test_published_shapes_have_their_published_counts(width, num_layers, num_heads, expected):
    with torch.device("meta"):
        model = GPT2(
            width=width, num_layers=num_layers, num_heads=num_heads, vocab_size=50_257, max_context_tokens=1024
        )
    assert model.shape().num_parameters == expected


def small_llama(**options):
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
    model = small_llama(**options)
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
def test_documents_in_one_row_are_as_if_each_were_alone_llama(options):
    model = small_llama(**options)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 130}, r"model\.width must be a multiple of 8 .* got 130.*136"),
        ({"num_layers": 0}, r"model\.num_layers=0"),
        ({"value_embedding_layers": (0, 2)}, r"model\.value_embedding_layers .*from 0 to 1.*layers=\[0\]"),
        (
            {"tie_embeddings": True, "head_init_std": 0.0},
            r"model\.head_init_std=0\.0 .* model\.tie_embeddings=false",
        ),
        ({"init_std": -0.1}, r"model\.init_std must .*at least 0, got -0\.1"),
        ({"head_width": 7}, r"model\.head_width must be even.*got 7.*8"),
        ({"num_kv_heads": 3}, r"model\.num_kv_heads must divide model\.num_heads=4, got 3"),
        ({"window_tokens": 4, "window_pattern": "SXL"}, r"model\.window_pattern .*SXL.*SL"),
        ({"value_embedding_layers": (1,), "value_gate_width": 65}, r"model\.value_gate_width must be from 1 to .*64"),
        ({"rope_base": 0.0}, r"model\.rope_base must .*above 0, got 0\.0.*10000"),
        ({"norm_eps": -1.0}, r"model\.norm_eps"),
        ({"norm_eps": float("nan")}, r"model\.norm_eps must be finite"),
        ({"qk_norm": True, "qk_norm_scale": float("nan")}, r"model\.qk_norm_scale must be finite and above 0"),
        ({"logit_soft_cap": 0.0}, r"model\.logit_soft_cap must be .*above 0"),
        ({"attention_soft_cap": 0.0}, r"model\.attention_soft_cap must be .*above 0"),
        ({"num_bigram_buckets": -1}, r"model\.num_bigram_buckets"),
        ({"activation": "gelu"}, r"model\.activation.*gelu.*swiglu"),
    ],
)
def test_impossible_settings_are_refused_by_key(options, message):
    with pytest.raises(ConfigurationError, match=message):
        small_llama(**options)


def meta(depth, **settings):
    with torch.device("meta"):
        return nano(**({"depth": depth, "vocab_size": 32_768, "max_context_tokens": 2048} | settings))


def test_the_dial_sets_the_counts_of_the_reference():
    shape = meta(12).shape()
    assert shape.num_parameters == 286_261_730
    assert shape.num_matmul_parameters == 110_100_912


SIZES = {"vocab_size": 101, "max_context_tokens": 32}
LAYERS = {"width": 64, "num_heads": 4, "feed_forward_width": 176} | SIZES
FAST = {"activation": "relu_squared", "qk_norm": True, "qk_norm_scale": 1.2, "embedding_skip": True}
KINDS = {
    "gpt2": lambda depth: GPT2(width=64, num_layers=depth, num_heads=4, **SIZES),
    "llama": lambda depth: Llama(num_layers=depth, **LAYERS),
    "qwen": lambda depth: Llama(num_layers=depth, qk_norm=True, tie_embeddings=True, **LAYERS),
    "as llama_tiny": lambda depth: Llama(num_layers=depth, embedding_init_std=1.0, **FAST, **LAYERS),
    "experts": lambda depth: Llama(num_layers=depth, experts=Experts(num_experts=2, num_experts_per_token=1), **LAYERS),
    "nano": lambda depth: nano(depth=depth, **SIZES),
}


def stream_and_gradients(model):
    """Return the residual stream's root mean square after each block, and the norm of each block's gradient."""
    scales = []
    for block in model.blocks:
        block.register_forward_hook(
            lambda module, inputs, output: scales.append(
                (output[0] if isinstance(output, tuple) else output).detach().square().mean().sqrt().item()
            )
        )
    tokens = torch.randint(101, (4, 33), generator=torch.Generator().manual_seed(1))
    total = model(tokens[:, :-1], tokens[:, 1:], CrossEntropy())
    (total.objective / total.num_tokens).backward()
    norms = [
        torch.stack([p.grad.norm() for p in block.parameters() if p.grad is not None]).norm().item()
        for block in model.blocks
    ]
    return (total.nats / total.num_tokens).item(), scales, norms


def make_nano_narrow(monkeypatch):
    """Let a nano be as deep as another, but one dimension a layer wide, rounded up to a head of 64."""
    monkeypatch.setattr(nano_dial, "WIDTH_PER_LAYER", 1)
    for module in (nano_dial, nano_module):
        monkeypatch.setattr(module, "HEAD_WIDTH", 64)


@pytest.mark.parametrize("depth", [2, 12, 48])
@pytest.mark.parametrize("name", KINDS)
def test_scales_stay_in_a_band_at_every_depth(monkeypatch, name, depth):
    make_nano_narrow(monkeypatch)
    model = KINDS[name](depth)
    model.initialize_weights(torch.Generator().manual_seed(0))
    loss, scales, norms = stream_and_gradients(model)
    assert abs(loss - 4.615) < 0.1  # ln 101: as good as a guess
    assert max(scales) < 6 * min(scales)
    assert max(norms) < 5 * min(norms)


# Every option of Llama at two or more values; each pair of values of two options is met below.
