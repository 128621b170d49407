"""Count on the real model what planning needs to know of it: parameters by part, and the memory of a step."""

from collections import Counter

import torch

from lmtrain.accounting.memory import TrainedParameters
from lmtrain.accounting.model_facts import LinearBytes, ModelFacts
from lmtrain.models.base import LanguageModel
from lmtrain.optim.parameter_groups import sort_parameters
from lmtrain.simulate.step_memory import SimulatedStep, simulate_step


def measure(step: SimulatedStep, *, context_tokens: int) -> ModelFacts:
    """Return the facts of a model in sequences of `context_tokens`; takes a few seconds and no memory to speak of."""
    with torch.device("meta"):
        model = step.build()
    one, two = (simulate_step(step, micro_batch_sequences=n, context_tokens=context_tokens) for n in (1, 2))
    return ModelFacts(
        shape=model.shape(),
        components=components(model),
        parameters=trained_parameters(model),
        activations=_line(one.activations, two.activations),
        workspace=_line(one.workspace, two.workspace),
    )


def components(model: LanguageModel) -> dict[str, int]:
    """Count parameters by part: embedding, head, and the parts of a block over all blocks; all norms together."""
    counted: Counter[str] = Counter()
    blocks = {id(parameter) for parameter in model.blocks.parameters()}
    for name, parameter in model.named_parameters():
        counted[_part(name, in_block=id(parameter) in blocks)] += parameter.numel()
    return dict(counted)


def trained_parameters(model: LanguageModel) -> TrainedParameters:
    """Count parameters as optimizers and sharding see them."""
    num_total = sum(parameter.numel() for parameter in model.parameters())
    of_blocks = [sum(parameter.numel() for parameter in block.parameters()) for block in model.blocks]
    return TrainedParameters(
        num_total=num_total,
        num_hidden_matrix=sum(parameter.numel() for parameter in sort_parameters(model).matrices),
        num_largest_block=max(of_blocks, default=0),
        num_outside_blocks=num_total - sum(of_blocks),
    )


def _part(name: str, *, in_block: bool) -> str:
    """Name the part of "layers.3.self_attention.qkv.weight": what follows the block's number, or the first word."""
    words = name.split(".")
    part = words[2] if in_block else words[0]
    return "norms" if "norm" in part else part


def _line(one: int, two: int) -> LinearBytes:
    return LinearBytes(fixed=2 * one - two, per_sequence=two - one)
