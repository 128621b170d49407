"""The reference is the formula of arXiv 2412.19437 section 2.2, on each document by itself."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.errors import ConfigurationError
from lmtrain.interop.hf_export import export_folder
from lmtrain.interop.model_settings import node_of
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.latent_attention import LatentWidths
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.self_attention import Positions
from lmtrain.parallel import activation_checkpoint
from lmtrain.parallel.context_slices import require_slices
from lmtrain.simulate.measured_facts import SimulatedStep, measure, simulate_step
from lmtrain.training.objectives.dpo import DirectPreference
from tests.interop.hugging_face import weights_of
from tests.interop.test_hf_export import load, to_export

SIZES = {"width": 16, "num_layers": 2, "num_heads": 2, "feed_forward_width": 24, "vocab_size": 257}
WEIGHT = 0.7
FUTURE = {"num_future_tokens": 2, "future_token_weight": WEIGHT}
LENGTHS = (1, 9, 2, 17, 3, 8)
KINDS = {
    "plain": {},
    "tied, with a window": {"tie_embeddings": True, "window_tokens": 4, "embedding_multiplier": 3.0},
    "scaled": {"norm_place": "both", "logit_multiplier": 0.3, "logit_soft_cap": 5.0},
    "experts": {
        "experts": Experts(num_experts=4, num_experts_per_token=2),
        "latent_attention": LatentWidths(latent=8, unrotated=4, rotated=4, value=8),
    },
}


def build(**settings):
    model = Llama(**{**SIZES, "max_context_tokens": 64, **settings})
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def moved(model):
    """Return a model whose norms matter."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def rows(seed=1):
    return torch.randint(257, (2, sum(LENGTHS) + 1), generator=torch.Generator().manual_seed(seed))


def packed():
    return torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS)).expand(2, -1)


def reference(model, tokens, targets, *, is_last):
    """Sum the losses over one document [B, L] and its targets, the last of which may be another document's."""
    norm = lambda x, part: F.rms_norm(x, (16,), eps=1e-5) * part.weight  # noqa: E731
    score = lambda x, of: F.cross_entropy(  # noqa: E731
        model.logits(x * model._logit_multiplier).flatten(0, 1), of.flatten(), reduction="sum"
    )
    hidden = model.hidden_states(tokens)
    total = F.cross_entropy(model.logits(hidden).flatten(0, 1), targets.flatten(), reduction="sum")
    embedded = model.embedding.token.weight[tokens] * model._embedding_multiplier
    own = targets if is_last else targets[:, :-1]
    for k, module in enumerate(model.layers[2:], start=1):
        num = tokens.shape[1] - k  # hidden states before tokens k, k + 1, ...
        if num < 1:
            break
        both = torch.cat((norm(embedded[:, k:], module.token_norm), norm(hidden[:, :num], module.hidden_norm)), dim=-1)
        places = Positions(*model.rope(num, None))
        hidden, _ = module.future_block(both @ module.inputs.weight.T, embedded[:, k:], places)
        further = own[:, k:]
        if further.shape[1]:
            scored = norm(hidden[:, : further.shape[1]], module.output_norm)
            total = total + WEIGHT / 2 * score(scored, further)
    return total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", [CrossEntropy(), ChunkedCrossEntropy(chunk_tokens=7)], ids=["plain", "chunked"])
def test_loss_and_gradients_are_those_of_the_formula_document_by_document(kind, loss):
    model, ids = moved(build(**KINDS[kind], **FUTURE)), rows()
    total = model(ids[:, :-1], ids[:, 1:], loss, packed())
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(total.objective, parameters)
    expected, first = torch.zeros(()), 0
    for number, length in enumerate(LENGTHS):
        last = first + length
        tokens, targets = ids[:, first:last], ids[:, first + 1 : last + 1]
        expected = expected + reference(model, tokens, targets, is_last=number == len(LENGTHS) - 1)
        first = last
    torch.testing.assert_close(total.objective, expected, atol=5e-6, rtol=5e-6)  # fp32, another order of sums
    for name, found, wanted in zip(names, gradients, torch.autograd.grad(expected, parameters), strict=True):
        scale = max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(found / scale, wanted / scale, atol=5e-6, rtol=5e-6, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_and_text_are_those_of_the_model_without_it(kind):
    with_it, without, ids = build(**KINDS[kind], **FUTURE).eval(), build(**KINDS[kind]).eval(), rows()
    for one, other in zip(with_it(ids[:, :-1], ids[:, 1:], CrossEntropy(), packed()),
                          without(ids[:, :-1], ids[:, 1:], CrossEntropy(), packed()), strict=True):  # fmt: skip
        assert torch.equal(one, other)
    assert torch.equal(with_it(ids), without(ids))


def test_nats_and_tokens_of_training_are_of_next_tokens_alone():
    with_it, without, ids = build(**FUTURE), build(), rows()
    made, plain = (model(ids[:, :-1], ids[:, 1:], CrossEntropy()) for model in (with_it, without))
    assert torch.equal(made.nats, plain.nats)
    assert torch.equal(made.num_tokens, plain.num_tokens)
    uniform = torch.log(torch.tensor(257.0)) * 2 * (sum(LENGTHS) * 2 - 1 - 2) / 2  # at the start, of both modules
    torch.testing.assert_close(made.objective - plain.objective, WEIGHT * uniform, rtol=0.05, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_flops_are_counted_exactly(kind):
    from torch.utils.flop_counter import FlopCounterMode

    settings = {name: value for name, value in KINDS[kind].items() if name != "window_tokens"}
    with torch.device("meta"):
        model, plain = (Llama(**SIZES, max_context_tokens=64, **settings, **further) for further in (FUTURE, {}))
        tokens = torch.zeros(2, 32, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            model(tokens, tokens, CrossEntropy())
    shape = model.shape()
    assert shape.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.num_parameters - plain.shape().num_parameters == 2 * (
        2 * 16 * 16 + 3 * 16 + sum(parameter.numel() for parameter in plain.layers[-1].parameters())
    )
    assert 3 * counter.get_total_flops() == tokens.numel() * flops_per_token(shape, 32).palm


def test_a_plan_counts_a_module_as_a_block():
    def with_one():
        return build(num_layers=4, num_future_tokens=1)

    step = SimulatedStep(
        build=with_one,
        compute_dtype=torch.bfloat16,
        recompute=activation_checkpoint.none,
        recomputes=False,
        is_compiled=False,
    )
    found = measure(step, context_tokens=32)
    assert found.parameters.num_total == sum(parameter.numel() for parameter in with_one().parameters())
    assert found.num_head == 2 * 16 * 257
    of_five = simulate_step(replace(step, build=lambda: build(num_layers=5)), num_sequences=2, context_tokens=32)
    assert found.activations.of(2) == pytest.approx(of_five.activations, rel=0.02)


def test_an_export_leaves_the_modules_out(tmp_path):
    model = moved(build(**FUTURE))
    export_folder(to_export(model, node_of(Llama, **SIZES, max_context_tokens=64, **FUTURE)), tmp_path / "out")
    assert not any("layers.2" in name for name in weights_of(tmp_path / "out"))
    theirs, ids = load(tmp_path / "out"), rows()
    torch.testing.assert_close(theirs(ids).logits, model(ids), atol=5e-6, rtol=5e-6)


def test_what_cannot_hold_the_modules_refuses_them_by_name():
    with pytest.raises(ConfigurationError, match=r"model\.num_future_tokens cannot be cut"):
        require_slices(build(**FUTURE))
    with pytest.raises(ConfigurationError, match=r"task=dpo: model\.num_future_tokens"):
        DirectPreference(beta=0.1).require(build(**FUTURE))
    with pytest.raises(ConfigurationError, match=r"model\.num_future_tokens must be"):
        build(num_future_tokens=-1)
