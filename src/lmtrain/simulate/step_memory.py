"""What a step needs in memory beyond weights, gradients and optimizer state, from the real model without any data.

The real forward and backward passes run on fake tensors, which have shapes and no bytes (torch.FakeTensorMode), so that
what is counted is what the model keeps and not what a formula says. Compiled blocks are cut into forward and backward
by the compiler's own partitioner, and autograd's hooks tell what passes from one to the other.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from lmtrain.losses.base import TokenLoss
from lmtrain.models.base import LanguageModel
from lmtrain.precision.kept_copies import keep_copies
from lmtrain.simulate.live_bytes import LiveBytes

# A deep model is run with this few and this many blocks, and each further block counts as much as those between.
FEW_BLOCKS: Final = 4
MANY_BLOCKS: Final = 8


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of one micro-batch: what the forward pass leaves for the backward pass, and what comes on top for a while.

    `workspace` is what is highest of the loss (logits and their gradients) and of the blocks' backward passes, both run
    eagerly: an upper bound where they are compiled.
    """

    activations: int
    workspace: int


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """What is run: how to build the model, the loss, and how both are run.

    `casts_parameters` computes with weights in `compute_dtype`, as FSDP gathers them, and so keeps the residual stream
    in it too; else products take copies of the weights, which are counted with these, and the stream stays in fp32.
    `is_compiled` cuts each block as the compiler does; a whole-model compile keeps about the same. Blocks that
    `recomputes` keep what they keep eagerly: the compiler leaves the boundaries of recomputation where they are.
    """

    build: Callable[[], LanguageModel]
    loss: TokenLoss
    compute_dtype: torch.dtype
    recompute: Callable[[LanguageModel], LanguageModel]
    recomputes: bool
    is_compiled: bool
    casts_parameters: bool = False


def simulate_step(step: SimulatedStep, *, micro_batch_sequences: int, context_tokens: int) -> StepMemory:
    """Return the memory of one micro-batch [B, T]; takes a second or two, whatever the size of the model.

    Gradients are there already, as in all micro-batches of a step but its first.
    """
    shape = (micro_batch_sequences, context_tokens)
    with FakeTensorMode():
        model = _built(step)
        num_blocks = len(model.blocks)
        if num_blocks <= MANY_BLOCKS:
            return _memory(step, model, shape)
        many = _memory(step, _with_blocks(model, MANY_BLOCKS), shape)
        few = _memory(step, _with_blocks(_built(step), FEW_BLOCKS), shape)
    per_block = (many.activations - few.activations) / (MANY_BLOCKS - FEW_BLOCKS)
    activations = round(many.activations + per_block * (num_blocks - MANY_BLOCKS))
    return StepMemory(activations=activations, workspace=many.workspace)


def simulate_workspace(step: SimulatedStep, *, micro_batch_sequences: int, context_tokens: int) -> int:
    """Return the workspace alone, which does not depend on how many blocks there are."""
    with FakeTensorMode():
        model = _with_blocks(_built(step), FEW_BLOCKS)
        peak, activations = _eager_peak(step, step.recompute(model), (micro_batch_sequences, context_tokens))
    return peak - activations


def _built(step: SimulatedStep) -> LanguageModel:
    model = step.build()
    if step.casts_parameters:  # by hand: Module.to swaps fake tensors in place, which torch refuses (2.13)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(torch.empty_like(parameter, dtype=step.compute_dtype)))
    elif step.compute_dtype != torch.float32:
        keep_copies(model, dtype=step.compute_dtype)
    return model


def _with_blocks(model: LanguageModel, num_blocks: int) -> LanguageModel:
    del model.blocks[num_blocks:]
    return model


def _memory(step: SimulatedStep, model: LanguageModel, shape: tuple[int, int]) -> StepMemory:
    """Run a micro-batch eagerly for its peak; where blocks are compiled, ask them what they keep."""
    model = step.recompute(model)
    peak, activations = _eager_peak(step, model, shape)
    workspace = peak - activations
    if step.is_compiled and not step.recomputes:
        activations = _kept_by_compiled_blocks(step, model, shape)
    return StepMemory(activations=activations, workspace=workspace)


def _eager_peak(step: SimulatedStep, model: LanguageModel, shape: tuple[int, int]) -> tuple[int, int]:
    """Return the bytes at the peak of a micro-batch, and those that its forward pass leaves behind."""
    tokens = torch.zeros(shape, dtype=torch.int64)
    known = [*model.parameters(), *model.buffers(), tokens]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        known.append(parameter.grad)
    with LiveBytes(known) as live:
        with _casting(step):
            hidden, penalty = model.features(tokens)
            activations = live.now
            total = step.loss(model.output_head(), hidden, tokens)
        del hidden
        (total.objective if penalty is None else total.objective + penalty).backward()
    return live.peak, activations


def _kept_by_compiled_blocks(step: SimulatedStep, model: LanguageModel, shape: tuple[int, int]) -> int:
    """Sum the storages that autograd keeps for the backward pass, and the hidden states that the loss takes."""
    torch.compiler.reset()  # versions of other simulated models count against torch's limit
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False, backend=_cut_only())
    tokens = torch.zeros(shape, dtype=torch.int64)
    known = [*model.parameters(), *model.buffers(), tokens]
    held: dict[int, Any] = {id(tensor.untyped_storage()): None for tensor in known}
    total = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal total
        storage = tensor.untyped_storage()
        if id(storage) not in held:
            held[id(storage)] = storage
            total += storage.nbytes()
        return tensor

    with _casting(step), saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden, _ = model.features(tokens)
    keep(hidden)
    return total


def _casting(step: SimulatedStep) -> AbstractContextManager[Any]:
    is_on = step.compute_dtype != torch.float32 and not step.casts_parameters
    return torch.autocast("cpu", dtype=step.compute_dtype, enabled=is_on)


@functools.cache
def _cut_only() -> Any:
    """Return a compiler that decides what the backward pass will need, and then runs operations one by one."""

    def as_it_is(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=as_it_is, bw_compiler=as_it_is, partition_fn=min_cut_rematerialization_partition)
