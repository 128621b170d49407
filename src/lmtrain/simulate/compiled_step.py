"""Compile a model's blocks and its loss as a run does, with a record in the place of the kernels."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx

from lmtrain.accounting.training_plan.step_events import Kernel, Message
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.compilation import compile_beside_blocks
from lmtrain.simulate.compiled_blocks import Compiler, cut_in_two
from lmtrain.simulate.fused_graph import fused_kernels, fused_peak
from lmtrain.simulate.kernel_costs import Formats, kernels_of
from lmtrain.simulate.messages import read_message
from lmtrain.simulate.recorder import Recorder


def compile_recorded(model: LanguageModel, *, recorder: Recorder) -> LanguageModel:
    """Compile each block, and head with loss, into graphs run operation by operation and booked as fused."""
    torch.compiler.reset()  # versions of other simulated models count against torch's limit
    compiler = cut_in_two(_booked(recorder), _booked(recorder))
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False, backend=compiler)
    return compile_beside_blocks(model, partial(torch.compile, dynamic=False, backend=compiler))


def _booked(recorder: Recorder) -> Compiler:
    def compiler(graph: fx.GraphModule, _: Any) -> Any:
        events = graph_events(graph.graph, recorder.formats)
        num_inputs = sum(node.op == "placeholder" for node in graph.graph.nodes)
        peak = fused_peak(graph.graph, is_held=[True] * num_inputs)

        def run(*arguments: Any) -> Any:
            with recorder.graph(events, peak=peak):
                made = graph.forward(*arguments)
            recorder.keep(made)
            return made

        return make_boxed_func(run)

    return compiler


def graph_events(graph: fx.Graph, formats: Formats) -> Sequence[Kernel | Message]:
    """Return a compiled graph's kernels, products with their FLOPs, and its messages, awaited at once."""
    found: list[Kernel | Message] = []
    for fused in fused_kernels(graph):
        node = fused.node
        own: list[Kernel | Message] = []
        if node is not None:
            arguments, named = _values(node.args), _values(node.kwargs)
            message = read_message(node.target, [*arguments, *named.values()], phase="forward")
            kernels = kernels_of(node.target, arguments, named, node.meta.get("val"), phase="forward", formats=formats)
            own += [message] if message else kernels
        found += own or [Kernel(flops=0.0, num_bytes=fused.num_bytes)]
    return found


def _values(arguments: Any) -> Any:
    """Return a node's arguments with the values of other nodes in the place of these."""
    values = fx.map_arg(arguments, lambda node: node.meta.get("val"))
    return list(values) if isinstance(values, tuple) else dict(values)
