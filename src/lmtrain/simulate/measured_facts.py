"""Count the planner's facts on the real model: parameters by part, and the memory of a step without any data.

The real forward and backward passes run on fake tensors with shapes and no bytes (torch.FakeTensorMode), so the count
is the model's own and not a formula's. Compiled blocks are cut into forward and backward by the compiler's own
partitioner, and autograd's hooks see the tensors that pass between them.
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from lmtrain.accounting.model.model_facts import LinearBytes, ModelFacts
from lmtrain.adapters.low_rank import is_of_adapter
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.own_model import GivenLogits
from lmtrain.optim.parameter_groups import trained_parameters
from lmtrain.precision.cast_weights import keep_copies, narrow_stream
from lmtrain.simulate.compiled_graph import cut_in_two, fused_peak, input_bytes
from lmtrain.simulate.live_memory import LiveBytes, without_bytes

NOTICES: Final = logging.getLogger("torch._higher_order_ops.wrap")  # of selective recomputation, to whoever compiles


@dataclass(frozen=True, kw_only=True)
class BlockMemory:
    """Bytes left by a forward pass, hidden states included, and the peak of the blocks' backward passes.

    `steps` are the bytes left before each block, and after the last. `shared` and `shared_steps` are those of
    tensors that sequences share.
    """

    activations: int
    peak: int
    steps: Sequence[int]
    shared: int = 0
    shared_steps: Sequence[int] = ()


def fake_tensors() -> FakeTensorMode:
    """Return a mode with one real tensor: the random state kept by compiled graphs for recomputed attention."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def compiled_blocks(model: LanguageModel, shape: tuple[int, int], *, masks_documents: bool = False) -> BlockMemory:
    """Compile the blocks and run a micro-batch [B, T] forward and back, without a loss, under `fake_tensors`."""
    torch.compiler.reset()  # versions of other simulated models count against torch's limit
    tokens = torch.zeros(shape, dtype=torch.int64)
    documents = torch.zeros(shape, dtype=torch.int32) if masks_documents else None
    known = [*model.parameters(), *model.buffers(), tokens, *([] if documents is None else [documents])]
    held: dict[int, Any] = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in known}
    weights = frozenset(held)
    kept = taken = shared = 0
    left: list[tuple[int, int]] = []

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept, shared
        storage = tensor.untyped_storage()
        if id(storage) not in held:
            held[id(storage)] = storage
            kept += storage.nbytes()
            shared += storage.nbytes() if storage.nbytes() % shape[0] else 0
        return tensor

    def see(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> None:
        nonlocal taken
        is_held = [not isinstance(one, Tensor) or id(one.untyped_storage()) in weights for one in arguments]
        arriving = input_bytes(graph.graph, "tangents")
        taken = max(taken, arriving + fused_peak(graph.graph, is_held=is_held))

    def note(*_: Any) -> None:
        left.append((kept, shared))

    compiler = _cut_only(note, see)
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False, backend=compiler)
    for block in model.blocks[-1:]:
        block.register_forward_hook(note)
    with _without_notices(), saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden, _ = model.features(tokens, documents)
    if not _gives_logits(model):
        keep(hidden)
    hidden.backward(torch.zeros_like(hidden))
    steps, shared_steps = zip(*left, strict=True) if left else ((0,), (0,))
    return BlockMemory(activations=kept, peak=steps[-1] + taken, steps=steps, shared=shared, shared_steps=shared_steps)


@contextmanager
def _without_notices() -> Generator[None]:
    NOTICES.disabled, before = True, NOTICES.disabled
    try:
        yield
    finally:
        NOTICES.disabled = before


def _cut_only(begin: Callable[[], None], see: Callable[[torch.fx.GraphModule, Sequence[Any]], None]) -> Any:
    """Return a compiler that cuts graphs and runs them operation by operation.

    `begin` is called before each forward pass, `see` before each backward pass.
    """

    def forward(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*arguments: Any) -> Any:
            begin()
            return graph.forward(*arguments)

        return make_boxed_func(run)

    def backward(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*arguments: Any) -> Any:
            see(graph, arguments)
            return graph.forward(*arguments)

        return make_boxed_func(run)

    return cut_in_two(forward, backward)


# A deep model is run with this many blocks, and each further block counts as much as those behind the first few.
FEW_BLOCKS: Final = 4
MANY_BLOCKS: Final = 8


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of one micro-batch: kept by the forward pass for the backward pass, and by the blocks' for a while besides.

    Backward passes are run eagerly, an upper bound where they are compiled, unless blocks recompute.
    """

    activations: int
    workspace: int
    shared: int = 0  # activations of tensors that sequences share, where blocks are compiled


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """The simulated run: how to build the model, and how it is run.

    `num_blocks` are those of the whole model, where only MANY_BLOCKS of them are built; None: all are.

    `casts_parameters` computes with weights in `compute_dtype`, as FSDP gathers them, and so keeps the residual stream
    in it too; else products take copies of the weights, counted with these, and the stream stays in fp32 unless the
    precision `narrows_residual`. `is_compiled` cuts each block as the compiler does, with the block's own recomputation
    (`recomputes`); a whole-model compile keeps about the same. Blocks with full recomputation keep the same as eagerly
    and are run so. `masks_documents`: attention takes each row's documents.
    """

    build: Callable[[], LanguageModel]
    compute_dtype: torch.dtype
    recompute: Callable[[LanguageModel], LanguageModel]
    recomputes: bool
    is_compiled: bool
    casts_parameters: bool = False
    narrows_residual: bool = False
    num_blocks: int | None = None
    masks_documents: bool = False


def simulate_step(
    step: SimulatedStep,
    *,
    num_sequences: int,
    context_tokens: int,
    most_blocks: int = MANY_BLOCKS,
    activations_alone: bool = False,
) -> StepMemory:
    """Return the memory of one micro-batch [B, T]; takes a second or two for a model of any size.

    Gradients are there already, as in all micro-batches of a step but its first. The workspace is that of any number
    of blocks; with `activations_alone` it means nothing where blocks are compiled, and a second run is saved.
    """
    shape = (num_sequences, context_tokens)
    with fake_tensors():
        model = _built(step)
        num_blocks = step.num_blocks or len(model.blocks)
        del model.blocks[most_blocks:]
        model = step.recompute(model)
        alone = step.is_compiled and (step.recomputes or activations_alone)
        backward = (_compiled_blocks if alone else _eager_blocks)(step, model, shape)
        kept = _compiled_blocks(step, model, shape) if step.is_compiled and not alone else backward
    workspace = backward.peak - backward.activations
    return StepMemory(
        activations=_of_all(kept.activations, kept.steps, num_blocks),
        workspace=workspace,
        shared=_of_all(kept.shared, kept.shared_steps, num_blocks),
    )


def _of_all(num_bytes: int, steps: Sequence[int], num_blocks: int) -> int:
    """Return the bytes of a model with `num_blocks` from those of the blocks that were run."""
    num_run = len(steps) - 1
    if num_blocks <= num_run or num_run < 1:
        return num_bytes
    behind = num_run // 2  # the first few are left out: FEW_BLOCKS of MANY_BLOCKS
    per_block = (steps[num_run] - steps[behind]) / (num_run - behind)
    return round(num_bytes + per_block * (num_blocks - num_run))


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


def _compiled_blocks(step: SimulatedStep, model: LanguageModel, shape: tuple[int, int]) -> BlockMemory:
    with _casting(step):
        return compiled_blocks(model, shape, masks_documents=step.masks_documents)


def _eager_blocks(step: SimulatedStep, model: LanguageModel, shape: tuple[int, int]) -> BlockMemory:
    tokens = torch.zeros(shape, dtype=torch.int64)
    documents = torch.zeros(shape, dtype=torch.int32) if step.masks_documents else None
    known = [*model.parameters(), *model.buffers(), tokens, *([] if documents is None else [documents])]
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
            known.append(parameter.grad)
    steps: list[int] = []
    with LiveBytes(known) as live:
        hooks = [block.register_forward_pre_hook(lambda *_: steps.append(live.now)) for block in model.blocks]
        hooks += [block.register_forward_hook(lambda *_: steps.append(live.now)) for block in model.blocks[-1:]]

        def blocks_begin(_: Tensor) -> None:
            live.peak = live.now

        with _casting(step):
            hidden, penalty = model.features(tokens, documents)
            activations = live.now - hidden.nbytes * _gives_logits(model)
            hidden.register_hook(blocks_begin)
            total = CrossEntropy()(model.output_head(), hidden, tokens)
        del hidden
        for hook in hooks:  # before recomputed blocks, and compiled
            hook.remove()
        (total.objective if penalty is None else total.objective + penalty).backward()
    return BlockMemory(activations=activations, peak=live.peak, steps=steps)


def _gives_logits(model: LanguageModel) -> bool:
    """Return whether the blocks' output is logits, which the loss's workspace counts."""
    head: Any = model.output_head()
    return isinstance(head, GivenLogits)


def _casting(step: SimulatedStep) -> AbstractContextManager[Any]:
    is_on = step.compute_dtype != torch.float32 and not step.casts_parameters
    return torch.autocast("cpu", dtype=step.compute_dtype, enabled=is_on)


MANY: Final = 64  # sequences: logits outgrow everything independent of their number
PRIME: Final = 61  # sequences: a tensor of another number of bytes is shared by them


def measure(step: SimulatedStep, *, context_tokens: int) -> ModelFacts:
    """Return the facts of a model in sequences of `context_tokens`; takes a few seconds and no memory to speak of."""
    with torch.device("meta"):
        model = step.build()
    shape, parts, parameters = model.shape(), components(model), trained_parameters(model)
    step = replace(step, num_blocks=len(model.blocks), build=_copies(model))
    cuts = step.is_compiled and not step.recomputes
    eager = replace(step, is_compiled=False) if cuts else step
    one, two = (simulate_step(eager, num_sequences=n, context_tokens=context_tokens) for n in (1, 2))
    many = [
        simulate_step(eager, num_sequences=n, context_tokens=context_tokens, most_blocks=FEW_BLOCKS)
        for n in (MANY, MANY + 1)
    ]
    activations = _line(one.activations, two.activations)
    if cuts:  # they keep other tensors than eager ones, in a workspace of the same size
        kept = simulate_step(step, num_sequences=PRIME, context_tokens=context_tokens, activations_alone=True)
        activations = LinearBytes(fixed=kept.shared, per_sequence=(kept.activations - kept.shared) / PRIME)
    return ModelFacts(
        shape=shape,
        components=parts,
        parameters=parameters,
        activations=activations,
        block_workspace=_line(one.workspace, two.workspace),
        block_workspace_of_many=_line(*(each.workspace for each in many), first=MANY),
    )


def _copies(model: LanguageModel) -> Callable[[], LanguageModel]:
    """Return a builder of the model with only the blocks to run, from one built on meta.

    Building thousands of blocks takes a second on meta and many times longer on fake tensors. Modules of future tokens
    count as blocks that are not run.
    """
    del model.blocks[min(MANY_BLOCKS, len(model.blocks) - model.num_future_tokens) :]
    return lambda: without_bytes(model)


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
    part = words[next(index for index, word in enumerate(words) if word.isdigit()) + 1] if in_block else words[0]
    return "norms" if "norm" in part else part


def _line(one: int, two: int, *, first: int = 1) -> LinearBytes:
    """Return the line through the bytes of `first` sequences and of one more."""
    return LinearBytes(fixed=one - first * (two - one), per_sequence=two - one)
