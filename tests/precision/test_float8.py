"""fp8 by emulation: values are rounded as the hardware would, and multiplied in the format that they came from."""

import importlib.util
import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.missing_package import install_command
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.parallel.activation_checkpoint import every_block, none, selective
from lmtrain.precision import float8
from lmtrain.precision.cast_weights import keep_copies
from lmtrain.precision.float8 import Float8Rounding, choose_layers, convert_layers, fp8

SHAPE = {"width": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 64, "max_context_tokens": 16}
TOKENS = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1))
needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


def build(**settings):
    model = Llama(**{**SHAPE, "feed_forward_width": 64, **settings})
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def converted(recipe="tensorwise", **settings):
    model = build(**settings)
    model = convert_layers(model, choose_layers(model, min_width=16), recipe=recipe, emulate=True)
    return keep_copies(model, dtype=torch.bfloat16)


def step(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = model(TOKENS, TOKENS.roll(1, 1), CrossEntropy())
    total.objective.backward()
    return total.objective.item(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_the_filter_takes_the_blocks_large_layers_and_says_why_not_the_others():
    chosen = choose_layers(build(feed_forward_width=72), min_width=32, skip=("layers.1.*.output",))
    assert chosen.lines() == [
        "fp8: layers.*.self_attention.qkv (2 layers)",
        "fp8: layers.*.self_attention.output (1 layer)",
        "fp8: layers.*.feed_forward.gate_up (2 layers)",
        "not fp8: layers.*.feed_forward.down (2 layers): 72 x 32 is not a multiple of 16 both ways",
        "not fp8: layers.*.self_attention.output (1 layer): precision.skip=layers.1.*.output",
        "not fp8: head (1 layer): not in a block",
    ]


def test_experts_are_told_to_stay_in_bf16():
    chosen = choose_layers(build(experts=Experts(num_experts=4, num_experts_per_token=2)), min_width=16)
    assert chosen.skipped["layers.0.feed_forward.down"] == "a product per expert"
    assert "layers.0.self_attention.qkv" in chosen.converted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_width": 4096}, "finds no layer to convert: .* Nearest valid: precision=bf16_mixed, or a smaller"),
        (
            {"min_width": 16, "skip": ("layer.*",)},
            r"precision.skip=layer.\* matches no linear layer; there are layers.0",
        ),
    ],
)
def test_a_choice_that_does_nothing_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        choose_layers(build(), **settings)


def test_bad_settings_and_devices_are_refused_before_anything_is_built(monkeypatch):
    with pytest.raises(ConfigurationError, match="min_width=0 is below 1"):
        fp8(min_width=0, device_type="cuda")
    with pytest.raises(ConfigurationError, match="on cpu"):
        fp8(device_type="cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(float8.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=re.escape(install_command("fp8"))):
        fp8(device_type="cuda")


@needs_torchao
def test_on_hopper_it_tells_what_it_converts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    precision = fp8(min_width=16, recipe="rowwise", device_type="cuda")
    lines = precision.explain(build())
    assert lines[0] == "fp8 rowwise by torchao"
    assert len(lines) == 6
    assert precision.describe().startswith("fp8 (asked for): products in fp8; bytes a parameter: 4 weights + 2 copy")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"min_width": 48}, "32 x 64 has a side below precision.min_width=48; nearest valid: precision.head=false"),
        (
            {"min_width": 16, "vocab_size": 65},
            "32 x 65 is not a multiple of 16 both ways; nearest valid: precision.head=false or model.vocab_size=80",
        ),
    ],
)
def test_a_head_that_fp8_cannot_multiply_is_refused(settings, reason):
    min_width = settings.pop("min_width")
    with pytest.raises(ConfigurationError, match=rf"precision\.head=true: the head of {reason}\.$"):
        choose_layers(build(**settings), min_width=min_width, head=True)


def test_a_head_is_not_both_skipped_and_rounded():
    with pytest.raises(ConfigurationError, match=r"precision\.skip=h\*d keeps head in bf16, .*precision\.head=false"):
        choose_layers(build(), min_width=16, head=True, skip=("h*d",))


@needs_torchao
@pytest.mark.parametrize("tied", [False, True])
def test_a_head_in_fp8_is_told_and_left_to_the_loss(tied, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    precision = fp8(min_width=16, head=True, device_type="cuda")
    assert precision.explain(build(tie_embeddings=tied))[-1] == "fp8: head, by the loss"
    assert not any("not fp8" in line for line in precision.explain(build(tie_embeddings=tied)))
    model = precision.prepare(build(tie_embeddings=tied), strategy_casts=False)
    assert isinstance(model.output_head().rounding, Float8Rounding)
    assert model.output_head().copy is not None


@needs_torchao
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_training_in_fp8_is_near_bf16_and_not_equal(recipe):
    loss, gradients = step(converted(recipe))
    expected_loss, expected = step(keep_copies(build(), dtype=torch.bfloat16))
    assert loss == pytest.approx(expected_loss, rel=2e-3)
    assert loss != expected_loss
    for name, gradient in expected.items():
        assert gradients[name].dtype == torch.float32
        # e4m3 keeps 3 bits of fraction (6% a value) and e5m2 2 (12%); sums over tokens average some of it out.
        assert (gradients[name] - gradient).norm() < 0.2 * gradient.norm(), name


class Maxima(TorchDispatchMode):
    """Counts the passes for an operand's largest value."""

    num_passes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num_passes += func is torch.ops.aten.max.default
        return func(*args, **(kwargs or {}))


@needs_torchao
def test_recomputed_blocks_look_for_no_largest_value_twice():
    """Three operands a layer and step: input, weight, gradient. torchao takes `max` of the absolute values."""
    num_passes = {}
    for transform in (none, selective, every_block):
        model = transform(converted())
        with Maxima() as counter:
            step(model)
        num_passes[transform] = counter.num_passes
    assert num_passes[none] > 0
    assert num_passes[selective] == num_passes[none] < num_passes[every_block]


@needs_torchao
def test_evaluation_runs_in_bf16_and_names_stay():
    model, plain = converted(), keep_copies(build(), dtype=torch.bfloat16)
    assert list(model.state_dict()) == list(plain.state_dict())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(TOKENS), plain(TOKENS))


@needs_torchao
def test_a_layer_that_was_not_chosen_is_left_alone():
    model = build()
    chosen = choose_layers(model, min_width=16, skip=("layers.0.*",))
    convert_layers(model, chosen, recipe="tensorwise", emulate=True)
    assert type(model.layers[0].self_attention.qkv) is torch.nn.Linear
    assert type(model.layers[1].self_attention.qkv) is not torch.nn.Linear
