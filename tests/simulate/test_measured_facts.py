from dataclasses import replace

import torch

from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.llama import Llama
from lmtrain.parallel import activation_checkpoint
from lmtrain.simulate.measured_facts import SimulatedStep, measure, simulate_step


def build(num_layers=3):
    return Llama(
        width=64,
        num_layers=num_layers,
        num_heads=4,
        feed_forward_width=128,
        vocab_size=1000,
        max_context_tokens=64,
        attention=sdpa,
        value_embedding_layers=[1],
    )


STEP = SimulatedStep(
    build=build,
    compute_dtype=torch.bfloat16,
    recompute=activation_checkpoint.none,
    recomputes=False,
    is_compiled=False,
)


def test_a_deep_model_is_built_once_and_told_as_if_it_were_run_whole():
    built = []
    step = replace(STEP, build=lambda: built.append(1) or build(num_layers=40))
    facts = measure(step, context_tokens=32)
    assert len(built) == 1
    assert len(facts.shape.attention) == 40
    whole = simulate_step(step, num_sequences=2, context_tokens=32)
    assert facts.activations.of(2) == whole.activations
