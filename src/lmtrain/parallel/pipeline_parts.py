"""A model's layers cut into the parts of a pipeline: which layers, and which parameters a part keeps."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from lmtrain.accounting.model.flops import block_forward_flops, causal_tokens
from lmtrain.accounting.model.memory import Pipeline, cut_evenly
from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.models.stages import StagedModel
from lmtrain.parallel.group_sizes import require_one_future_token

NUMBERED: Final = frozenset({"layers", "value_embeddings"})  # modules by the number of their layer


def require_staged(model: nn.Module, *, pipeline: Pipeline) -> None:
    """Refuse a model that does not run in parts, or has fewer layers than parts."""
    if not isinstance(model, StagedModel):
        raise ConfigurationError(
            f"model: must be GPT2 or Llama with pipeline stages, got {type(model).__name__}. "
            "Did you mean strategy=fsdp?"
        )
    require_one_future_token(model.num_future_tokens)
    pipeline.require_layers(len(model.blocks))


def cut_layers(model: LanguageModel, *, num_parts: int) -> list[range]:
    """Cut the layers into consecutive parts, at least one layer each, so that the longest takes the least time.

    The time is that of a token's forward pass in the model's context; the head is in the last part.
    """
    return cut_evenly(tuple(layer_costs(model)), num_parts)


def layer_costs(model: LanguageModel) -> list[float]:
    """Return the FLOPs of a token's forward pass through each layer, and the head with the last."""
    shape = model.shape()
    costs: list[float] = []
    for block, attention in zip(model.blocks, shape.attention, strict=True):
        num_active = sum(parameter.numel() for parameter in block.parameters() if parameter.ndim > 1)
        num_active -= sum(one.num_idle_parameters for one in block.modules() if isinstance(one, MixtureOfExperts))
        seen = causal_tokens(model.max_context_tokens, window_tokens=attention.window_tokens)
        alone = replace(shape, attention=(attention,))
        costs.append(block_forward_flops(alone, num_block_parameters=num_active, seen=seen))
    costs[-1] += 2.0 * model.output_head().weight.numel()
    return costs


def holders(model: StagedModel, parts: Sequence[range]) -> dict[str, frozenset[int]]:
    """Return the parts that need each parameter and buffer, by its name.

    A table tied to the head is in the first part and in the last.
    """
    first, last = 0, len(parts) - 1
    of_layer = {layer: part for part, layers in enumerate(parts) for layer in layers}
    head = model.output_head().weight
    tied = next(name for name, parameter in model.named_parameters() if parameter is head).rpartition(".")[0]
    found: dict[str, frozenset[int]] = {}
    for name in [*dict(model.named_parameters()), *dict(model.named_buffers())]:
        top, number = name.split(".")[:2] if "." in name else (name, "")
        needs: set[int] = set(range(len(parts)))
        if top in NUMBERED:
            needs = {of_layer[int(number)]}
        elif top in model.begins_with:
            needs = {first}
        elif top in model.ends_with:
            needs = {last}
        if name.startswith(f"{tied}."):
            needs |= {last}
        found[name] = frozenset(needs)
    return found


def twin_on_meta(model: LanguageModel) -> LanguageModel:
    """Return a model of the same parameters without memory."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def keep(model: nn.Module, names: frozenset[str]) -> None:
    """Drop every parameter and buffer of other names; the modules stay, and with them the names of the rest."""
    for place, module in model.named_modules():
        prefix = f"{place}." if place else ""
        for name in dict(module.named_parameters(recurse=False)):
            if prefix + name not in names:
                module.register_parameter(name, None)
        for name in dict(module.named_buffers(recurse=False)):
            if prefix + name not in names:
                module.register_buffer(name, None)
