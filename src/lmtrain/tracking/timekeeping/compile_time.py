"""Compilation in the midst of an evaluation, by torch's own word of it (torch._dynamo.callback)."""

import contextlib
from collections.abc import Generator

from lmtrain.tracking.timekeeping.stopwatch import Stopwatch


@contextlib.contextmanager
def compile_time_apart(stopwatch: Stopwatch) -> Generator[None]:
    """Book an evaluation's compilation as compilation: the first one compiles the graph without gradients.

    A first step is compilation as a whole, until the second one tells an ordinary step's time.
    """
    from torch._dynamo.callback import callback_handler  # seconds to import, spared to a run without compilation

    compiling = contextlib.ExitStack()

    def begin(_: object) -> None:
        if stopwatch.kind == "evaluation":
            compiling.enter_context(stopwatch.spending("compile"))

    def end(_: object) -> None:
        compiling.close()

    callback_handler.register_start_callback(begin)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(begin)
        callback_handler.remove_end_callback(end)
