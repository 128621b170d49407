"""Ctrl-C and SIGTERM during work that loses exceptions."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def kept_interrupts() -> Generator[None]:
    """Raise a signal's exception at the end where the block has lost it.

    Python drops an exception of a weak reference's callback, and torch's compiler (2.13) is often in one: about one
    Ctrl-C in ten had no effect.
    """
    if threading.current_thread() is not threading.main_thread():  # no other one gets signals
        yield
        return
    raised: list[BaseException] = []

    def noting(handler: Handler) -> Handler:
        def handle(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as interrupt:
                raised.append(interrupt)
                raise

        return handle

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: noting(handler) for number, handler in before.items() if callable(handler)}
    for number, handler in ours.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
    if raised:
        raise raised[0]
