"""A step's memory beyond weights, gradients and optimizer state, from the real model without any data.

The real forward and backward passes run on fake tensors with shapes and no bytes (torch.FakeTensorMode), so the count
is the model's own and not a formula's. Compiled blocks are cut into forward and backward by the compiler's own
partitioner, and autograd's hooks see the tensors passed between them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from lmtrain.losses.base import TokenLoss
from lmtrain.models.base import LanguageModel
from lmtrain.precision.kept_copies import keep_copies
from lmtrain.precision.narrow_stream import narrow_stream
from lmtrain.simulate.compiled_blocks import compiled_blocks, fake_tensors
from lmtrain.simulate.live_bytes import LiveBytes

# A deep model is run with this few and this many blocks, and each further block counts as much as those between.
FEW_BLOCKS: Final = 4
MANY_BLOCKS: Final = 8


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of one micro-batch: kept by the forward pass for the backward pass, and on top of that for a while.

    `workspace` is the higher need of the loss (logits and their gradients) and of the blocks' backward passes, both run
    eagerly: an upper bound where they are compiled. Blocks with partial recomputation count as the compiler runs them.
    """

    activations: int
    workspace: int


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """The simulated run: how to build the model, the loss, and how both are run.

    `num_blocks` are those of the whole model, where what is built has MANY_BLOCKS of them; None: it has all.

    `casts_parameters` computes with weights in `compute_dtype`, as FSDP gathers them, and so keeps the residual stream
    in it too; else products take copies of the weights, counted with these, and the stream stays in fp32 unless the
    precision `narrows_residual`. `is_compiled` cuts each block as the compiler does, with the block's own recomputation
    (`recomputes`); a whole-model compile keeps about the same. Blocks with full recomputation keep the same as eagerly
    and are run so.
    """

    build: Callable[[], LanguageModel]
    loss: TokenLoss
    compute_dtype: torch.dtype
    recompute: Callable[[LanguageModel], LanguageModel]
    recomputes: bool
    is_compiled: bool
    casts_parameters: bool = False
    narrows_residual: bool = False
    num_blocks: int | None = None


def simulate_step(step: SimulatedStep, *, micro_batch_sequences: int, context_tokens: int) -> StepMemory:
    """Return the memory of one micro-batch [B, T]; takes a second or two for a model of any size.

    Gradients are there already, as in all micro-batches of a step but its first.
    """
    shape = (micro_batch_sequences, context_tokens)
    with fake_tensors():
        model = _built(step)
        num_blocks = step.num_blocks or len(model.blocks)
        if num_blocks <= MANY_BLOCKS:
            return _memory(step, model, shape)
        many = _memory(step, _with_blocks(model, MANY_BLOCKS), shape)
        few = _memory(step, _with_blocks(_built(step), FEW_BLOCKS), shape)
    per_block = (many.activations - few.activations) / (MANY_BLOCKS - FEW_BLOCKS)
    activations = round(many.activations + per_block * (num_blocks - MANY_BLOCKS))
    return StepMemory(activations=activations, workspace=many.workspace)


def simulate_workspace(step: SimulatedStep, *, micro_batch_sequences: int, context_tokens: int) -> int:
    """Return the workspace alone, the same for any number of blocks."""
    with fake_tensors():
        model = _with_blocks(_built(step), FEW_BLOCKS)
        return _memory(step, model, (micro_batch_sequences, context_tokens)).workspace


def _built(step: SimulatedStep) -> LanguageModel:
    model = step.build()
    if step.casts_parameters:  # by hand: Module.to swaps fake tensors in place, which torch refuses (2.13)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(torch.empty_like(parameter, dtype=step.compute_dtype)))
    elif step.compute_dtype != torch.float32:
        if step.narrows_residual:
            narrow_stream(model, dtype=step.compute_dtype)
        keep_copies(model, dtype=step.compute_dtype)
    return model


def _with_blocks(model: LanguageModel, num_blocks: int) -> LanguageModel:
    del model.blocks[num_blocks:]
    return model


def _memory(step: SimulatedStep, model: LanguageModel, shape: tuple[int, int]) -> StepMemory:
    """Run a micro-batch eagerly for its peak; compiled blocks report their own need."""
    model = step.recompute(model)
    eager = _eager_peaks(step, model, shape)
    if not step.is_compiled:
        return StepMemory(activations=eager.activations, workspace=max(eager.loss, eager.blocks) - eager.activations)
    with _casting(step):
        compiled = compiled_blocks(model, shape)
    blocks = compiled.peak - compiled.activations if step.recomputes else eager.blocks - eager.activations
    return StepMemory(activations=compiled.activations, workspace=max(eager.loss - eager.activations, blocks))


@dataclass(frozen=True, kw_only=True)
class _Peaks:
    """Bytes left by a forward pass, and the peaks up to the gradient of hidden states and after it."""

    activations: int
    loss: int
    blocks: int


def _eager_peaks(step: SimulatedStep, model: LanguageModel, shape: tuple[int, int]) -> _Peaks:
    tokens = torch.zeros(shape, dtype=torch.int64)
    known = [*model.parameters(), *model.buffers(), tokens]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        known.append(parameter.grad)
    of_loss: list[int] = []
    with LiveBytes(known) as live:

        def blocks_begin(_: Tensor) -> None:
            of_loss.append(live.peak)
            live.peak = live.now

        with _casting(step):
            hidden, penalty = model.features(tokens)
            activations = live.now
            hidden.register_hook(blocks_begin)
            total = step.loss(model.output_head(), hidden, tokens)
        del hidden
        (total.objective if penalty is None else total.objective + penalty).backward()
    return _Peaks(activations=activations, loss=of_loss[0], blocks=live.peak)


def _casting(step: SimulatedStep) -> AbstractContextManager[Any]:
    is_on = step.compute_dtype != torch.float32 and not step.casts_parameters
    return torch.autocast("cpu", dtype=step.compute_dtype, enabled=is_on)
