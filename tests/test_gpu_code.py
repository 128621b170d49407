"""The code compiled for a GPU from the harness's cases, without one: whole graphs, kernels, buffers and memory.

A block stands for all of its model, and every layer sees the whole context by torch's own attention, the kernel of
which is chosen on the device.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from benchmarks.harness.hopper.cases import CASES, last_of_each
from lmtrain.losses.chunked import Rule, score, score_logits
from lmtrain.models.head import Rounding
from lmtrain.run.builders.device import build_precision
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.planning.plan import planned_runs
from lmtrain.run.run_config import read_config
from tests.fake_gpu import GpuBytes, Graph, fake_gpu

pytest.importorskip("torchao")
pytest.importorskip("triton")

FP8 = ("precision=fp8", "precision.residual=bf16")
EXPERIMENTS = {
    "1B bf16": (CASES[0], ()),
    "1B fp8": (CASES[0], FP8),
    "1B fp8 head": (CASES[0], (*FP8, "precision.head=true")),
    "GPT-2": (CASES[1], ()),
    "nano": (CASES[2], ("model.window_pattern=L",)),
}


@dataclass(frozen=True)
class Block:
    """A block's graphs, and the norm's after it."""

    graphs: list[Graph]
    bytes_of: list[tuple[int, int]]  # left by a graph, and its peak
    num_blocks: int
    num_breaks: int

    @property
    def kept_bytes(self) -> int:
        """Return the bytes left by the forward passes of all blocks and of the norm."""
        *blocks, norm = [
            left for graph, (left, _) in zip(self.graphs, self.bytes_of, strict=True) if not graph.is_backward
        ]
        return self.num_blocks * sum(blocks) // len(blocks) + norm

    @property
    def backward_bytes(self) -> int:
        """Return by how much a block's backward pass goes beyond the bytes that its forward pass left."""
        return self.bytes_of[-1][1] - self.bytes_of[0][0]


def words_of(name: str) -> list[str]:
    case, more = EXPERIMENTS[name]
    return last_of_each(
        [
            *case.words,
            *more,
            "attention=sdpa",
            "data=synthetic",
            "schedule=constant",
            "scaling=none",
            "batch.tokens_per_step=524288",
            "budget=steps",
            "budget.steps=2000",
        ]
    )


@cache
def compiled_block(words: tuple[str, ...]) -> Block:
    """Compile one block and the norm of a run by these words."""
    config = read_config(compose_config([*words, "trainer.accelerator=gpu"]))
    with torch.device("meta"):
        model = config.model.build()
    num_blocks = len(model.blocks)
    del model.blocks[2:]  # nano's take turns in value embeddings
    counters.clear()
    with fake_gpu() as gpu, mock.patch.object(torch, "compile", partial(torch.compile, backend=gpu.backend())):
        precision = build_precision(config)
        made: dict[int, Any] = {
            **{id(one): nn.Parameter(torch.empty(one.shape, dtype=one.dtype)) for one in model.parameters()},
            **{id(one): torch.empty(one.shape, dtype=one.dtype) for one in model.buffers()},
        }
        model = config.recompute.build()(precision.prepare(deepcopy(model, made), strategy_casts=False))
        model = config.compile.build().apply(model)
        assert isinstance(config.batch.micro_batch_sequences, int)
        tokens = torch.zeros((config.batch.micro_batch_sequences, config.batch.context_tokens), dtype=torch.int64)
        with torch.autocast("cpu", dtype=precision.compute_dtype):
            hidden, _ = model.features(tokens)
        hidden.backward(torch.zeros_like(hidden))
        return Block(
            gpu.graphs, [graph.run() for graph in gpu.graphs], num_blocks, sum(counters["graph_break"].values())
        )


def block_of(name: str) -> Block:
    return compiled_block(tuple(word for word in words_of(name) if word != "precision.head=true"))


@cache
def scored(name: str) -> tuple[list[Graph], int, int]:
    """Return the graphs of the loss, what it leaves, and its peak, beyond its inputs."""
    config = read_config(compose_config([*words_of(name), "trainer.accelerator=gpu"]))
    batch, vocab_size, width = config.batch, *_head_of(config)
    assert isinstance(batch.micro_batch_sequences, int)
    num_tokens = batch.micro_batch_sequences * batch.context_tokens
    rounding: Any = Rounding()
    if "precision.head=true" in words_of(name):
        from lmtrain.precision.float8 import Float8Rounding

        rounding = Float8Rounding()
    loss = config.loss.build()
    rule = Rule(torch.bfloat16, loss.logit_tokens(num_tokens), 0.0, -100, None, rounding, None)
    counters.clear()
    with fake_gpu() as gpu, torch.no_grad():
        weight = torch.empty(vocab_size, width, dtype=torch.bfloat16, device="cuda")
        states = torch.empty(num_tokens, width, dtype=torch.bfloat16, device="cuda")
        targets = torch.zeros(num_tokens, dtype=torch.int64, device="cuda")
        scores = torch.compile(score_logits, fullgraph=True, dynamic=False)
        scores(states[: rule.chunk_tokens] @ weight.T, targets[: rule.chunk_tokens], rule, gradients=True)
        with GpuBytes([weight, states, targets]) as live:
            results = score(states, weight, targets, rule, gradients=(True, True), scores=scores)
        assert not counters["graph_break"]
        del results
        return gpu.graphs, live.peak, rule.chunk_tokens


def _head_of(config: Any) -> tuple[int, int]:
    with torch.device("meta"):
        return tuple(config.model.build().output_head().weight.shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_plan_s_memory_is_that_of_the_compiled_step_within_a_twentieth(name):
    [run] = planned_runs([*words_of(name), "cluster=h200_1x"])
    planned = run.to_json()["memory"]["per_device_bytes"]
    temporary = planned["activations"] + planned["workspace"]
    found = block_of(name).kept_bytes + max(block_of(name).backward_bytes, scored(name)[1])
    total = planned["total"] - planned["margin"]
    assert total == pytest.approx(total - temporary + found, rel=0.05)
    if name == "1B bf16":
        assert total < 76 * 2**30
