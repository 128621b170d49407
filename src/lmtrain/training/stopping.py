"""A stop from outside without a wait for a step: before the first one, or asked for twice."""

import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Final

from lmtrain.errors import EXIT_INTERRUPTED, EXIT_REQUEUE, EXIT_TERMINATED

Handler = Callable[[int, FrameType | None], Any] | signal.Handlers
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
EXIT_CODES: Final[dict[int, int]] = {
    signal.SIGTERM: EXIT_TERMINATED,
    signal.SIGINT: EXIT_INTERRUPTED,
    signal.SIGUSR1: EXIT_REQUEUE,
}


class StoppedEarly(BaseException):  # no error, and nothing that catches errors may keep it
    """A signal came before the first step; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        name = signal.Signals(self.number).name
        return f"{name}: stopped before the first step of this attempt, which has nothing to save."


class StoppedAtOnce(StoppedEarly):
    """A second SIGINT came: the step still awaited is given up."""

    def __str__(self) -> str:
        return "SIGINT again: stopped at once, without the steps since the last checkpoint."


@contextmanager
def handling(handler: Handler, numbers: Sequence[signal.Signals] = SIGNALS) -> Generator[None]:
    """Let a handler take the signals inside this context; outside the main thread Python takes no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before or signal.SIG_DFL)


def stopping_at_once() -> AbstractContextManager[None]:
    """Let signals raise StoppedEarly inside this context."""
    return handling(_raise)


def ignoring_interrupts() -> AbstractContextManager[None]:
    """Let no SIGINT cut short the report of a run's end."""
    return handling(signal.SIG_IGN, [signal.SIGINT])


@contextmanager
def ended_by_signals() -> Generator[None]:
    """Let a signal end a measurement, which has nothing to save, in one line and with the signal's exit code."""
    try:
        with stopping_at_once():
            yield
    except StoppedEarly as stop:
        if stop.number == signal.SIGINT:
            raise KeyboardInterrupt from stop
        sys.stderr.write(f"lmtrain: {signal.Signals(stop.number).name}: stopped; nothing was to be kept\n")
        raise SystemExit(128 + stop.number) from stop


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    raise StoppedEarly(number)
