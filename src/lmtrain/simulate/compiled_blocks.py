"""The memory of blocks compiled one by one, kept for the backward pass and needed in it, from fake tensors.

The compiler's own partitioner cuts each block into forward and backward, and autograd's hooks see the tensors passed
between them. The backward pass's need is read from its graph.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from lmtrain.models.base import LanguageModel
from lmtrain.simulate.fused_graph import fused_peak, input_bytes

Compiler = Callable[[torch.fx.GraphModule, Any], Any]
NOTICES: Final = logging.getLogger("torch._higher_order_ops.wrap")  # of selective recomputation, to whoever compiles


@dataclass(frozen=True, kw_only=True)
class CompiledBlocks:
    """Bytes left by a forward pass, hidden states included, and the peak of the blocks' backward passes.

    `steps` are the bytes left before each block, and after the last.
    """

    activations: int
    peak: int
    steps: Sequence[int]


def fake_tensors() -> FakeTensorMode:
    """Return a mode with one real tensor: the random state kept by compiled graphs for recomputed attention."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def compiled_blocks(model: LanguageModel, shape: tuple[int, int], *, masks_documents: bool = False) -> CompiledBlocks:
    """Compile the blocks and run a micro-batch [B, T] forward and back, without a loss, under `fake_tensors`."""
    torch.compiler.reset()  # versions of other simulated models count against torch's limit
    tokens = torch.zeros(shape, dtype=torch.int64)
    documents = torch.zeros(shape, dtype=torch.int32) if masks_documents else None
    known = [*model.parameters(), *model.buffers(), tokens, *([] if documents is None else [documents])]
    held: dict[int, Any] = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in known}
    weights = frozenset(held)
    kept = by_blocks = taken = 0
    before: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        storage = tensor.untyped_storage()
        if id(storage) not in held:
            held[id(storage)] = storage
            kept += storage.nbytes()
        return tensor

    def see(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> None:
        nonlocal taken
        is_held = [not isinstance(one, Tensor) or id(one.untyped_storage()) in weights for one in arguments]
        arriving = input_bytes(graph.graph, "tangents")
        taken = max(taken, arriving + fused_peak(graph.graph, is_held=is_held))

    def last_block(*_: Any) -> None:
        nonlocal by_blocks
        by_blocks = kept

    compiler = _cut_only(lambda: before.append(kept), see)
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False, backend=compiler)
    for block in model.blocks[-1:]:
        block.register_forward_hook(last_block)
    with _without_notices(), saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden, _ = model.features(tokens, documents)
    keep(hidden)
    hidden.backward(torch.zeros_like(hidden))
    return CompiledBlocks(activations=kept, peak=by_blocks + taken, steps=[*before, by_blocks])


@contextmanager
def _without_notices() -> Generator[None]:
    NOTICES.disabled, before = True, NOTICES.disabled
    try:
        yield
    finally:
        NOTICES.disabled = before


def _cut_only(begin: Callable[[], None], see: Callable[[torch.fx.GraphModule, Sequence[Any]], None]) -> Any:
    """Return a compiler to cut graphs and run them operation by operation; each pass is told, the second shown."""

    def told(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*arguments: Any) -> Any:
            begin()
            return graph.forward(*arguments)

        return make_boxed_func(run)

    def shown(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*arguments: Any) -> Any:
            see(graph, arguments)
            return graph.forward(*arguments)

        return make_boxed_func(run)

    return cut_in_two(told, shown)


def cut_in_two(forward: Compiler, backward: Compiler) -> Any:
    """Return a compiler to cut a graph with the usual partitioner and give each half to one of these."""
    return aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=min_cut_rematerialization_partition)
