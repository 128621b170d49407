"""fp8 by emulation: values are rounded as the hardware would, and multiplied in the format that they came from."""

import importlib.util
import math

import pytest
import torch

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.head import OutputHead
from lmtrain.models.llama import Llama
from lmtrain.precision.cast_weights import keep_copies
from lmtrain.precision.float8 import Float8Rounding, choose_layers, convert_layers

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


@needs_torchao
def test_evaluation_runs_in_bf16_and_names_stay():
    model, plain = converted(), keep_copies(build(), dtype=torch.bfloat16)
    assert list(model.state_dict()) == list(plain.state_dict())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(TOKENS), plain(TOKENS))


pytest.importorskip("torchao")

EMULATED = Float8Rounding(emulate=True)
E4M3, E5M2 = 2.0**-4, 2.0**-3  # half a step of 3 and 2 bits of fraction, relative: the most that a value is off
NUM_TOKENS, WIDTH, VOCABULARY = 200, 64, 512


def total_of(rounding, *, soft_cap=None, z_loss_weight=1e-4):
    """Score 200 tokens in chunks of 25, no multiple of 16: the total and the gradients of states and weight."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, NUM_TOKENS, WIDTH, generator=generator).requires_grad_()
    weight = (torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.1).requires_grad_()
    targets = torch.randint(VOCABULARY, (1, NUM_TOKENS), generator=generator)
    head = OutputHead(weight, soft_cap, copy=weight.detach().bfloat16(), rounding=rounding)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = ChunkedCrossEntropy(z_loss_weight=z_loss_weight)(head, hidden, targets)
    return total, *torch.autograd.grad(total.objective, (hidden, weight))


@pytest.mark.parametrize("soft_cap", [None, 5.0])
def test_loss_and_gradients_are_off_by_what_rounding_costs(soft_cap):
    total, of_states, of_weight = total_of(EMULATED, soft_cap=soft_cap)
    expected, expected_of_states, expected_of_weight = total_of(None, soft_cap=soft_cap)
    assert total.nats != expected.nats
    # A logit sums 64 terms of standard deviation 0.1, whose factors are off by at most 2^-4: by 0.8 x 2^-4 x sqrt 2
    # = 0.07 at most in its standard deviation, and a token's nats by as much. A mean of 200 is off by a fourteenth.
    assert total.nats.item() / NUM_TOKENS == pytest.approx(expected.nats.item() / NUM_TOKENS, abs=0.07 / math.sqrt(200))
    # A gradient is a sum of products: e5m2 times e4m3, of logits that are off themselves.
    bound = math.sqrt(E5M2**2 + E4M3**2 + 0.07**2)
    for gradient, reference in ((of_states, expected_of_states), (of_weight, expected_of_weight)):
        assert 0.01 * reference.norm() < (gradient - reference).norm() < bound * reference.norm()


def test_evaluation_is_bf16_to_the_last_bit():
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        hidden, weight = (torch.randn(*sizes, generator=generator).bfloat16() for sizes in ((1, 16, 32), (64, 32)))
        targets = torch.arange(16).unsqueeze(0)
        totals = [ChunkedCrossEntropy()(OutputHead(weight, rounding=one), hidden, targets) for one in (EMULATED, None)]
    assert totals[0].nats == totals[1].nats
