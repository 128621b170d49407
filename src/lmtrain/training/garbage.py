"""Garbage collection out of the way of imports, traces and configs, whose objects stay."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collecting_later(*, freezes: bool = False) -> Generator[None]:
    """Look for no garbage in this context; afterwards as before, with `freezes` not in the objects made in it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freezes:
            gc.freeze()
        if collects:
            gc.enable()
