"""A step's memory beyond weights, gradients and optimizer state, from the real model without any data.

The real forward and backward passes run on fake tensors with shapes and no bytes (torch.FakeTensorMode), so the count
is the model's own and not a formula's. Compiled blocks are cut into forward and backward by the compiler's own
partitioner, and autograd's hooks see the tensors passed between them.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from lmtrain.losses.base import TokenLoss
from lmtrain.models.base import LanguageModel
from lmtrain.precision.kept_copies import keep_copies
from lmtrain.precision.narrow_stream import narrow_stream
from lmtrain.simulate.compiled_blocks import CompiledBlocks, compiled_blocks, fake_tensors
from lmtrain.simulate.live_bytes import LiveBytes

# A deep model is run with this many blocks, and each further block counts as much as those behind the first few.
FEW_BLOCKS: Final = 4
MANY_BLOCKS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Bytes beside activations: the most in a step, and in the blocks' backward passes alone."""

    most: int
    blocks: int


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of one micro-batch: kept by the forward pass for the backward pass, and for a while besides.

    `workspace` is the higher need of the loss (logits and their gradients) and of the blocks' backward passes
    (`block_workspace`), both run eagerly: an upper bound where they are compiled. Blocks with partial recomputation
    count as the compiler runs them. `per_block` are the activations of each block beyond MANY_BLOCKS, None of a model
    without.
    """

    activations: int
    workspace: int
    block_workspace: int
    per_block: float | None = None

    def with_further(self, num_blocks: int) -> int:
        """Return the activations of a model with so many blocks more."""
        assert self.per_block is not None or not num_blocks
        return round(self.activations + (self.per_block or 0.0) * num_blocks)


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """The simulated run: how to build the model, the loss, and how both are run.

    `num_blocks` are those of the whole model, where only MANY_BLOCKS of them are built; None: all are.

    `casts_parameters` computes with weights in `compute_dtype`, as FSDP gathers them, and so keeps the residual stream
    in it too; else products take copies of the weights, counted with these, and the stream stays in fp32 unless the
    precision `narrows_residual`. `is_compiled` cuts each block as the compiler does, with the block's own recomputation
    (`recomputes`); a whole-model compile keeps about the same. Blocks with full recomputation keep the same as eagerly
    and are run so. `masks_documents`: attention takes each row's documents.
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
    masks_documents: bool = False


def simulate_step(step: SimulatedStep, *, micro_batch_sequences: int, context_tokens: int) -> StepMemory:
    """Return the memory of one micro-batch [B, T]; takes a second or two for a model of any size.

    Gradients are there already, as in all micro-batches of a step but its first.
    """
    shape = (micro_batch_sequences, context_tokens)
    with fake_tensors():
        model = _built(step)
        num_blocks = step.num_blocks or len(model.blocks)
        del model.blocks[MANY_BLOCKS:]
        model = step.recompute(model)
        eager = _eager_peaks(step, model, shape)
        compiled = _compiled(step, model, shape) if step.is_compiled else None
    return _of_depth(compiled or eager, num_blocks, workspace=_workspace(step, eager, compiled))


def simulate_workspace(step: SimulatedStep, *, micro_batch_sequences: int, context_tokens: int) -> Workspace:
    """Return the workspace alone, the same for any number of blocks."""
    with fake_tensors():
        model = _built(step)
        del model.blocks[FEW_BLOCKS:]
        model, shape = step.recompute(model), (micro_batch_sequences, context_tokens)
        eager = _eager_peaks(step, model, shape)
        compiled = _compiled(step, model, shape) if step.is_compiled and step.recomputes else None
    return _workspace(step, eager, compiled)


def _built(step: SimulatedStep) -> LanguageModel:
    model = step.build()
    if step.casts_parameters:  # by hand: Module.to swaps fake tensors in place, which torch refuses (2.13)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                cast = torch.empty_like(parameter, dtype=step.compute_dtype)
                setattr(module, name, nn.Parameter(cast, requires_grad=parameter.requires_grad))
    elif step.compute_dtype != torch.float32:
        if step.narrows_residual:
            narrow_stream(model, dtype=step.compute_dtype)
        keep_copies(model, dtype=step.compute_dtype)
    return model


def _of_depth(run: "_Peaks | CompiledBlocks", num_blocks: int, *, workspace: Workspace) -> StepMemory:
    """Return the memory of a model of `num_blocks`, from the bytes left by each block in the run."""
    if num_blocks <= MANY_BLOCKS:  # all were run
        return StepMemory(activations=run.activations, workspace=workspace.most, block_workspace=workspace.blocks)
    per_block = (run.steps[MANY_BLOCKS] - run.steps[FEW_BLOCKS]) / (MANY_BLOCKS - FEW_BLOCKS)
    activations = round(run.activations + per_block * (num_blocks - MANY_BLOCKS))
    return StepMemory(
        activations=activations, workspace=workspace.most, block_workspace=workspace.blocks, per_block=per_block
    )


@dataclass(frozen=True, kw_only=True)
class _Peaks:
    """Bytes left by a forward pass, and the peaks up to the gradient of hidden states and after it.

    `steps` are the bytes left before each block, and after the last.
    """

    activations: int
    loss: int
    blocks: int
    steps: Sequence[int]


def _workspace(step: SimulatedStep, eager: _Peaks, compiled: CompiledBlocks | None) -> Workspace:
    """Return the higher need of the loss and of the blocks' backward passes, run eagerly unless they recompute."""
    blocks = eager.blocks - eager.activations
    if compiled is not None and step.recomputes:
        blocks = compiled.peak - compiled.activations
    return Workspace(most=max(eager.loss - eager.activations, blocks), blocks=blocks)


def _compiled(step: SimulatedStep, model: LanguageModel, shape: tuple[int, int]) -> CompiledBlocks:
    with _casting(step):
        return compiled_blocks(model, shape, masks_documents=step.masks_documents)


def _eager_peaks(step: SimulatedStep, model: LanguageModel, shape: tuple[int, int]) -> _Peaks:
    tokens = torch.zeros(shape, dtype=torch.int64)
    documents = torch.zeros(shape, dtype=torch.int32) if step.masks_documents else None
    known = [*model.parameters(), *model.buffers(), tokens, *([] if documents is None else [documents])]
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        parameter.grad = torch.zeros_like(parameter)
        known.append(parameter.grad)
    of_loss: list[int] = []
    steps: list[int] = []
    with LiveBytes(known) as live:
        hooks = [block.register_forward_pre_hook(lambda *_: steps.append(live.now)) for block in model.blocks]
        hooks += [block.register_forward_hook(lambda *_: steps.append(live.now)) for block in model.blocks[-1:]]

        def blocks_begin(_: Tensor) -> None:
            of_loss.append(live.peak)
            live.peak = live.now

        with _casting(step):
            hidden, penalty = model.features(tokens, documents)
            activations = live.now
            hidden.register_hook(blocks_begin)
            total = step.loss(model.output_head(), hidden, tokens)
        del hidden
        for hook in hooks:  # before recomputed blocks, and compiled
            hook.remove()
        (total.objective if penalty is None else total.objective + penalty).backward()
    return _Peaks(activations=activations, loss=of_loss[0], blocks=live.peak, steps=steps)


def _casting(step: SimulatedStep) -> AbstractContextManager[Any]:
    is_on = step.compute_dtype != torch.float32 and not step.casts_parameters
    return torch.autocast("cpu", dtype=step.compute_dtype, enabled=is_on)
