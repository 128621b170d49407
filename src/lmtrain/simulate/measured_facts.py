"""Count the planner's facts on the real model: parameters by part, and the memory of a step."""

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from lmtrain.accounting.model.model_facts import LinearBytes, ModelFacts
from lmtrain.adapters.low_rank import is_of_adapter
from lmtrain.models.base import LanguageModel
from lmtrain.optim.trained_parameters import trained_parameters
from lmtrain.simulate.step_memory import MANY_BLOCKS, SimulatedStep, simulate_step, simulate_workspace

MANY: Final = 64  # sequences: logits outgrow everything independent of their number


def measure(step: SimulatedStep, *, context_tokens: int) -> ModelFacts:
    """Return the facts of a model in sequences of `context_tokens`; takes a few seconds and no memory to speak of."""
    return measure_depths(step, [step.build], context_tokens=context_tokens)[0]


def measure_depths(
    step: SimulatedStep, builds: Sequence[Callable[[], LanguageModel]], *, context_tokens: int
) -> list[ModelFacts]:
    """Return the facts of models with more and more blocks, alike beyond MANY_BLOCKS, from one run of the first."""
    with torch.device("meta"):
        models = [build() for build in builds]
    counts = [(model.shape(), components(model), trained_parameters(model)) for model in models]
    depths = [len(model.blocks) for model in models]
    step = replace(step, num_blocks=depths[0], build=_copies(models[0]))
    one, two = (simulate_step(step, micro_batch_sequences=n, context_tokens=context_tokens) for n in (1, 2))
    many = [simulate_workspace(step, micro_batch_sequences=n, context_tokens=context_tokens) for n in (MANY, MANY + 1)]
    return [
        ModelFacts(
            shape=shape,
            components=parts,
            parameters=parameters,
            activations=_line(one.with_further(depth - depths[0]), two.with_further(depth - depths[0])),
            workspace=_line(one.workspace, two.workspace),
            workspace_of_many=_line(*(each.most for each in many), first=MANY),
            block_workspace=_line(one.block_workspace, two.block_workspace),
            block_workspace_of_many=_line(*(each.blocks for each in many), first=MANY),
        )
        for depth, (shape, parts, parameters) in zip(depths, counts, strict=True)
    ]


def _copies(model: LanguageModel) -> Callable[[], LanguageModel]:
    """Return a builder of the model with only the blocks to run, from one built on meta.

    Building thousands of blocks takes a second on meta and many times longer on fake tensors.
    """
    del model.blocks[MANY_BLOCKS:]

    def build() -> LanguageModel:
        made: dict[int, Any] = {
            **{
                id(one): nn.Parameter(torch.empty(one.shape, dtype=one.dtype), one.requires_grad)
                for one in model.parameters()
            },
            **{id(one): torch.empty(one.shape, dtype=one.dtype) for one in model.buffers()},
        }
        return deepcopy(model, made)

    return build


def components(model: LanguageModel) -> dict[str, int]:
    """Count parameters by part: embedding, head, and the parts of a block over all blocks; all norms together."""
    counted: Counter[str] = Counter()
    blocks = {id(parameter) for parameter in model.blocks.parameters()}
    for name, parameter in model.named_parameters():
        counted[_part(name, in_block=id(parameter) in blocks)] += parameter.numel()
    return dict(counted)


def _part(name: str, *, in_block: bool) -> str:
    """Name the part of "layers.3.self_attention.qkv.weight": the words after the block's number, or the first word."""
    words = name.split(".")
    if is_of_adapter(name):
        return "adapters"
    part = words[2] if in_block else words[0]
    return "norms" if "norm" in part else part


def _line(one: int, two: int, *, first: int = 1) -> LinearBytes:
    """Return the line through the bytes of `first` sequences and of one more."""
    return LinearBytes(fixed=one - first * (two - one), per_sequence=two - one)
