"""A limit on the seconds of one measurement, by an alarm of the main thread: what runs longer is given up."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

GIVEN_UP: Final = "given up after"


@contextmanager
def deadline(seconds: float | None) -> Generator[None]:
    """Raise RuntimeError in the body after so many seconds; None sets no limit."""
    if seconds is None:
        yield
        return

    def give_up(number: int, frame: Any) -> None:
        del number, frame
        raise RuntimeError(f"{GIVEN_UP} {seconds:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
