"""The time of an attempt's set-up, attempts/<n>/set_up.json: known also of one that was killed before its first event.

The process's sign of life is in it, written anew every few seconds until the attempt is accepted: a copy of the folder
has it too.
"""

import contextlib
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.tracking.timekeeping.clock import unix_seconds

FILE: Final = "set_up.json"
NOTED_EVERY_SECONDS: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class SetUpTime:
    """An attempt's beginning and the end of its set-up as far as seen, in unix seconds, on so many devices."""

    started_at: float
    seen_at: float
    num_devices: int


@contextlib.contextmanager
def noted_set_up(attempt: Path, *, began: float, num_devices: int, is_over: Callable[[], bool]) -> Generator[None]:
    """Note an attempt that `began` on time.monotonic's clock, and that it lives until its set-up `is_over`."""
    ended, started_at = threading.Event(), unix_seconds(began)

    def note() -> None:
        write_json(attempt / FILE, {"started_at": started_at, "seen_at": unix_seconds(), "num_devices": num_devices})

    def go_on() -> None:
        while not ended.wait(NOTED_EVERY_SECONDS) and not is_over():
            with contextlib.suppress(EnvironmentProblem):  # a full or a lost disk
                note()

    note()
    noting = threading.Thread(target=go_on, name="set-up time", daemon=True)
    noting.start()
    try:
        yield
    finally:
        ended.set()
        noting.join()


def set_up_time(attempt: Path) -> SetUpTime | None:
    """Read an attempt's note; None without a whole one."""
    noted = read_json(attempt / FILE)
    started_at, seen_at, num_devices = (noted.get(name) for name in ("started_at", "seen_at", "num_devices"))
    if (
        not isinstance(started_at, int | float)
        or not isinstance(seen_at, int | float)
        or not isinstance(num_devices, int)
    ):
        return None
    return SetUpTime(started_at=started_at, seen_at=max(started_at, seen_at), num_devices=num_devices)
