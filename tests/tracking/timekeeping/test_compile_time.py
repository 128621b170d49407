import pytest
import torch
from torch._dynamo.callback import callback_handler

from lmtrain.tracking.events import compile_time_apart
from lmtrain.tracking.stopwatch import Stopwatch


@pytest.mark.parametrize(("kind", "while_compiling"), [("evaluation", "compile"), ("compute", "compute")])
def test_an_evaluation_alone_is_interrupted_by_compilation(kind, while_compiling):
    watch, seen = Stopwatch(), []

    def backend(graph, _):
        seen.append(watch.kind)
        return graph.forward

    with compile_time_apart(watch), watch.spending(kind):
        twice = torch.compile(lambda x: 2 * x, backend=backend)
        assert twice(torch.ones(2)).tolist() == twice(torch.ones(2)).tolist() == [2.0, 2.0]
        assert watch.kind == kind, "a recompiled step is a step: its end would be another kind's"
    assert seen == [while_compiling], "compiled once"
    assert not callback_handler.start_callbacks
    assert not callback_handler.end_callbacks
