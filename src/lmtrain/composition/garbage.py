"""Garbage collection out of the way of imports, traces and configs, whose objects stay."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collecting_later() -> Generator[None]:
    """Look for no garbage in this context; afterwards as before."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
