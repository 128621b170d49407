"""Weights at the start: sound from 2 layers to 48, and all there, whatever the options."""

import itertools
import statistics

import pytest
import torch

from lmtrain.accounting.scaling_laws import depth_scaling as nano_dial
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models import nano as nano_module
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.nano import nano
from lmtrain.models.residual_stream import SkipStart
from lmtrain.models.rope import LinearRopeScaling

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


@pytest.mark.parametrize("name", KINDS)
def test_depth_changes_the_scale_of_gradients_little(monkeypatch, name):
    make_nano_narrow(monkeypatch)
    medians = []
    for depth in (2, 24):
        model = KINDS[name](depth)
        model.initialize_weights(torch.Generator().manual_seed(0))
        medians.append(statistics.median(stream_and_gradients(model)[2]))
    assert max(medians) < 4 * min(medians)


# Every option of Llama at two or more values; each pair of values of two options is met below.
CHOICES = {
    "num_kv_heads": (None, 2),
    "head_width": (None, 8),
    "activation": ("swiglu", "relu_squared"),
    "rope_scaling": (None, LinearRopeScaling(factor=2.0)),
    "norm_weights": (True, False),
    "tie_embeddings": (False, True),
    "qk_norm": (False, True),
    "logit_soft_cap": (None, 15.0),
    "embedding_norm": (False, True),
    "backout": (False, True),
    "key_smear": (False, True),
    "num_bigram_buckets": (0, 16),
    "window_tokens": (None, 4),
    "zero_init_outputs": (False, True),
}
GROUPS = (
    {},
    {"embedding_skip": True},
    {"embedding_skip": True, "embedding_skip_start": SkipStart(last_embedded=0.1)},
    {"embedding_smear": True},
    {"embedding_smear": True, "smear_gate_width": 4},
    {"value_embedding_layers": (0,)},
    {"value_embedding_layers": (1,), "value_gate_width": 4, "value_embedding_init_std": 0.1},
    {"head_init_std": 0.0, "tie_embeddings": False},
    {"qk_norm": True, "qk_norm_scale": 1.2},
    {"qk_norm": True, "qk_norm_over": "width"},
    {"experts": Experts(num_experts=2, num_experts_per_token=1), "activation": "swiglu"},
)


def combinations():
    """Yield every group with every pair of values of two other options, the rest off."""
    off = {name: values[0] for name, values in CHOICES.items()}
    for group in GROUPS:
        for first, second in itertools.combinations(CHOICES, 2):
            yield off | {first: CHOICES[first][1], second: CHOICES[second][1]} | group


def test_no_combination_of_options_leaves_a_parameter_unfilled():
    unfilled = []
    for options in combinations():
        with torch.device("meta"):
            model = Llama(
                width=16,
                num_layers=2,
                num_heads=4,
                feed_forward_width=8,
                vocab_size=11,
                max_context_tokens=4,
                **options,
            )
        model.to_empty(device="cpu")
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for tensor in tensors.values():
                tensor.fill_(torch.nan)
        model.initialize_weights(torch.Generator().manual_seed(0))
        unfilled += [(name, options) for name, tensor in tensors.items() if not tensor.isfinite().all()]
    assert unfilled == []
