import subprocess
import sys

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


FAILS = """
import torch
from lmtrain.tracking.events import compile_time_apart
from lmtrain.tracking.stopwatch import Stopwatch

def backend(graph, _):
    raise KeyError("no compiler")

watch = Stopwatch()
with compile_time_apart(watch), watch.spending("evaluation"):
    try:
        torch.compile(lambda x: 3 * x, backend=backend)(torch.ones(2))
    except Exception as problem:
        print("no compiler" in str(problem), watch.kind)
"""


def test_a_compilation_that_fails_ends_too():
    # In a process of its own: torch keeps something of it that changes the workspace of a later plan (2.13).
    ran = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, check=False, timeout=120)
    assert ran.stdout == "True evaluation\n", ran.stderr
