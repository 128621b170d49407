"""Predictions from fake tensors against the peak that torch's own profiler sees in a real step on this CPU."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lmtrain.losses.chunked import ChunkedCrossEntropy, chunked_cross_entropy_facts
from lmtrain.losses.cross_entropy import CrossEntropy, cross_entropy_facts
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.transformers_model import TransformersModel
from lmtrain.parallel import activation_checkpoint
from lmtrain.precision.cast_weights import keep_copies
from lmtrain.simulate.measured_facts import MANY_BLOCKS, SimulatedStep, simulate_step
from tests.counted_kernels import counted_kernels

SHAPE = {"num_sequences": 2, "context_tokens": 128}
LLAMA = {"width": 64, "num_heads": 4, "num_kv_heads": 2, "feed_forward_width": 256, "vocab_size": 1000}


def llama(num_layers):
    return Llama(**LLAMA, num_layers=num_layers, max_context_tokens=128, attention=sdpa)


def gpt2(num_layers):
    return GPT2(width=64, num_layers=num_layers, num_heads=4, vocab_size=1000, max_context_tokens=128, attention=sdpa)


PLAIN = CrossEntropy()

SIZES = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 3}
HEADS = {**SIZES, "num_attention_heads": 4, "intermediate_size": 256, "max_position_embeddings": 128}
GROUPED = {**HEADS, "num_key_value_heads": 2}
OLDER = {"vocab_size": 1000, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
TRANSFORMERS = {
    "bloom": {**SIZES, "n_head": 4},
    "falcon": HEADS,
    "gemma2": {**GROUPED, "head_dim": 16},
    "glm4": {**GROUPED, "head_dim": 16},
    "gpt2": OLDER,
    "gpt_neox": HEADS,
    "gptj": {**OLDER, "rotary_dim": 8},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "opt": {**HEADS, "ffn_dim": 256, "word_embed_proj_dim": 64},
    "phi3": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 16},
}


def predicted_peak(step, *, loss=PLAIN):
    """Return the activations, and the higher need of the loss and of the blocks next to them."""
    found = simulate_step(step, **SHAPE)
    facts = cross_entropy_facts() if loss is PLAIN else chunked_cross_entropy_facts()
    value_bytes = step.compute_dtype.itemsize
    sizes = {"num_tokens": 256, "vocab_size": LLAMA["vocab_size"], "width": 64, "value_bytes": value_bytes}
    of_loss = facts.workspace(**sizes, stream_bytes=4, is_compiled=False)
    return found.activations + max(of_loss, found.workspace)


def simulated(build, *, dtype=torch.float32, recompute="none", is_compiled=False):
    return SimulatedStep(
        build=build,
        compute_dtype=dtype,
        recompute=getattr(activation_checkpoint, recompute),
        recomputes=recompute != "none",
        is_compiled=is_compiled,
    )


def measured_peak(step, *, loss=PLAIN):
    """Sum a second micro-batch's allocations and frees as torch's profiler records them."""
    model = step.recompute(step.build())
    model.initialize_weights(torch.Generator().manual_seed(0))
    if step.compute_dtype != torch.float32:
        keep_copies(model, dtype=step.compute_dtype)
    if step.is_compiled:
        for block in model.blocks:
            block.compile(fullgraph=True, dynamic=False)
    tokens = torch.zeros(tuple(SHAPE.values()), dtype=torch.int64)
    documents = torch.zeros_like(tokens, dtype=torch.int32) if step.masks_documents else None

    def micro_step():
        with torch.autocast("cpu", dtype=step.compute_dtype, enabled=step.compute_dtype != torch.float32):
            total = model(tokens, tokens, loss, documents)
        total.objective.backward()

    micro_step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        micro_step()
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    events = profiled.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("loss", [PLAIN, ChunkedCrossEntropy()], ids=["plain", "chunked"])
@pytest.mark.parametrize("recompute", ["none", "every_block", "selective"])
@pytest.mark.parametrize("build", [llama, gpt2])
def test_the_prediction_is_the_measured_peak(build, recompute, loss):
    step = simulated(lambda: build(3), recompute=recompute)
    assert predicted_peak(step, loss=loss) == pytest.approx(measured_peak(step, loss=loss), rel=0.02)


@pytest.mark.parametrize("recompute", ["none", "every_block"])
def test_bf16_is_predicted_with_products_of_kept_copies(recompute):
    step = simulated(lambda: llama(3), dtype=torch.bfloat16, recompute=recompute)
    assert predicted_peak(step) == pytest.approx(measured_peak(step), rel=0.05)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_class_of_transformers_takes_the_predicted_bytes(kind):
    tokens = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": None}
    step = simulated(lambda: TransformersModel(config={"model_type": kind, **TRANSFORMERS[kind], **tokens}))
    assert predicted_peak(step) == pytest.approx(measured_peak(step), rel=0.01)


def test_a_deep_model_is_predicted_from_a_few_of_its_blocks():
    step = simulated(lambda: llama(MANY_BLOCKS + 5))
    assert predicted_peak(step) == pytest.approx(measured_peak(step), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "share"), [("none", 0.9), ("selective", 0.97)])
def test_compiled_blocks_keep_less_and_as_much_as_predicted(recompute, share):
    eager = simulate_step(simulated(lambda: llama(2), dtype=torch.bfloat16, recompute=recompute), **SHAPE)
    step = simulated(lambda: llama(2), dtype=torch.bfloat16, recompute=recompute, is_compiled=True)
    predicted = simulate_step(step, **SHAPE)
    assert predicted.activations < share * eager.activations
    with counted_kernels():  # what they write is of no matter to what is allocated
        assert predicted_peak(step) == pytest.approx(measured_peak(step), rel=0.05)


def test_nothing_is_allocated_for_a_model_far_beyond_this_machine():
    step = simulated(
        lambda: Llama(**LLAMA | {"width": 16384, "num_heads": 128}, num_layers=126, max_context_tokens=128)
    )
    predicted = simulate_step(step, num_sequences=64, context_tokens=128)
    assert predicted.activations > 100e9


def test_weights_cast_by_the_strategy_keep_the_residual_stream_narrow():
    under_autocast = simulated(lambda: llama(4), dtype=torch.bfloat16, recompute="every_block")
    cast = replace(under_autocast, casts_parameters=True)
    wide, narrow = (simulate_step(step, **SHAPE).activations for step in (under_autocast, cast))
    rounded = replace(under_autocast, narrows_residual=True)
    assert simulate_step(rounded, **SHAPE).activations == pytest.approx(narrow, rel=2e-3), "as the precision rounds it"
    stream = SHAPE["num_sequences"] * SHAPE["context_tokens"] * LLAMA["width"]
    assert wide - narrow >= 4 * 2 * stream, "two bytes less for what enters each of four blocks"
