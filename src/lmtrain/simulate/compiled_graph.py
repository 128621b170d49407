"""The peak of memory of a compiled graph, and a compiler that cuts graphs in two without compiling them.

A compiler stores the inputs and results of a product, attention or another unfused kernel, the results of
reductions, and the graph's outputs. Everything between is computed where it is read, from the tensors stored before it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._ops import OpOverload

Compiler = Callable[[torch.fx.GraphModule, Any], Any]
# By the start of their names: operations fused by no compiler with their neighbours.
OWN_KERNELS: Final = (
    "aten.mm",
    "aten.addmm",
    "aten.bmm",
    "aten.baddbmm",
    "aten._scaled_mm",
    "aten._grouped_mm",
    "aten._scaled_dot_product",
    "aten._flash_attention",
    "aten.embedding_dense_backward",
    "aten.sort",
    "aten.topk",
)
# Their results lie apart from their inputs, and cannot take an input's place.
MOVING: Final = ("aten.cat", "aten.slice_backward", "aten.slice_scatter")
FUSED_LIBRARIES: Final = ("aten", "prims")
WAIT: Final = "_c10d_functional.wait_tensor"  # for a message: no kernel, and no tensor of its own
MUCH_SMALLER: Final = 8  # times: a reduction


@dataclass
class _Buffer:
    """A tensor with memory: when it is made and last read, as places in the graph."""

    num_bytes: int
    made: int
    last: int
    is_fused: bool = False
    inputs: set[int] = field(default_factory=set[int])


def fused_peak(graph: fx.Graph, *, is_held: Sequence[bool]) -> int:
    """Return the most bytes at once beyond the inputs'; inputs not held go after their last read.

    Negative never: the graph begins with nothing beyond its inputs.
    """
    buffers = _buffers(graph, is_held)
    made = sorted((buffer for buffer in buffers.values() if buffer.made >= 0), key=lambda buffer: buffer.made)
    ends = sorted((buffer for buffer in buffers.values()), key=lambda buffer: buffer.last)
    now = peak = freed = 0
    for buffer in made:
        while freed < len(ends) and ends[freed].last < buffer.made:
            now -= ends[freed].num_bytes
            freed += 1
        now += buffer.num_bytes
        peak = max(peak, now - _written_over(buffer, buffers))
    return peak


def input_bytes(graph: fx.Graph, prefix: str) -> int:
    """Add up the inputs with names of this beginning."""
    inputs = (node for node in graph.nodes if node.op == "placeholder" and node.name.startswith(prefix))
    return sum(_bytes(tensor) for node in inputs for tensor in _tensors(node))


def _buffers(graph: fx.Graph, is_held: Sequence[bool]) -> dict[int, _Buffer]:
    """Return the tensors with memory by storage, with the place of their last read."""
    nodes = list(graph.nodes)
    places = {node: place for place, node in enumerate(nodes)}
    buffers: dict[int, _Buffer] = {}
    reads: dict[fx.Node, set[int]] = {}  # stored tensors read by computing a node
    num_inputs = 0
    for node in nodes:
        tensors = _tensors(node)
        if node.op == "placeholder":
            held = is_held[num_inputs] if num_inputs < len(is_held) else True
            num_inputs += 1
            for tensor in tensors:
                last = len(nodes) if held else -1
                buffers.setdefault(_key(tensor), _Buffer(num_bytes=_bytes(tensor), made=-1, last=last))
            reads[node] = {_key(tensor) for tensor in tensors}
            continue
        read = set[int]().union(*(reads[source] for source in node.all_input_nodes)) if node.all_input_nodes else set()
        written = [tensor for tensor in tensors if _key(tensor) not in read and _has_memory(node, tensor)]
        for tensor in written:
            is_fused = not _is_own_kernel(node) and not str(node.target).startswith(MOVING)
            buffers[_key(tensor)] = _Buffer(
                num_bytes=_bytes(tensor), made=places[node], last=places[node], is_fused=is_fused, inputs=read
            )
        if written or node.op == "output" or _is_own_kernel(node):
            for key in read:
                buffers[key].last = max(buffers[key].last, len(nodes) if node.op == "output" else places[node])
        reads[node] = {_key(tensor) for tensor in written} or read
    return buffers


def _written_over(buffer: _Buffer, buffers: dict[int, _Buffer]) -> int:
    """Return the bytes saved by a fused kernel in writing over an equally large input at its last read."""
    if not buffer.is_fused:
        return 0
    dead = (buffers[key] for key in buffer.inputs)
    return next((one.num_bytes for one in dead if one.last == buffer.made and one.num_bytes == buffer.num_bytes), 0)


def _has_memory(node: fx.Node, tensor: Tensor) -> bool:
    """Return whether a node's result is stored."""
    if _is_own_kernel(node) or any(user.op == "output" or _is_own_kernel(user) for user in _readers(node)):
        return True
    largest = max((_bytes(one) for source in node.all_input_nodes for one in _tensors(source)), default=0)
    return _bytes(tensor) * MUCH_SMALLER <= largest


def _readers(node: fx.Node) -> list[fx.Node]:
    """Return who reads a node, also through views of it."""
    found: list[fx.Node] = []
    keys = {_key(tensor) for tensor in _tensors(node)}
    for user in node.users:
        if user.op != "output" and not _is_own_kernel(user) and keys & {_key(one) for one in _tensors(user)}:
            found += _readers(user)
        else:
            found.append(user)
    return found


def _is_own_kernel(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    return node.target.namespace not in FUSED_LIBRARIES or str(node.target).startswith(OWN_KERNELS)


def _tensors(node: fx.Node) -> list[Tensor]:
    value: Any = (node.all_input_nodes[0] if str(node.target).startswith(WAIT) else node).meta.get("val")
    values: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, Tensor)]


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _bytes(tensor: Tensor) -> int:
    return int(math.prod(tensor.shape)) * tensor.element_size()  # the random state's length may be a symbol


def cut_in_two(forward: Compiler, backward: Compiler) -> Any:
    """Return a compiler to cut a graph with the usual partitioner and give each half to one of these."""

    def partition(joint: fx.GraphModule, *arguments: Any, **settings: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        halves = min_cut_rematerialization_partition(joint, *arguments, **settings)
        for constant in (buffer for half in halves for buffer in half.buffers()):  # an index, such as x[[-1]]
            # autograd copies the graph of the backward pass, and a fake tensor's copy fails (torch 2.13)
            cast("Any", constant).__deepcopy__ = partial(_same, constant)
        return halves

    return aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=partition)


def _same(constant: Tensor, _: object) -> Tensor:
    return constant
