"""The time of an attempt's set-up, attempts/<n>/set_up.json: known also of one that was killed before its first event.

The file's last change is the process's sign of life: it is touched once a second until the attempt is accepted.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.tracking.timekeeping.clock import unix_seconds

FILE: Final = "set_up.json"
TOUCHED_EVERY_SECONDS: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class SetUpTime:
    """An attempt's beginning and the end of its set-up as far as seen, in unix seconds, on so many devices."""

    started_at: float
    seen_at: float
    num_devices: int


@contextlib.contextmanager
def noted_set_up(attempt: Path, *, began: float, num_devices: int, is_over: Callable[[], bool]) -> Generator[None]:
    """Note an attempt that `began` on time.monotonic's clock, and touch the note until its set-up `is_over`."""
    file = attempt / FILE
    write_json(file, {"started_at": unix_seconds(began), "num_devices": num_devices})
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(TOUCHED_EVERY_SECONDS) and not is_over():
            with contextlib.suppress(OSError):  # a full or a lost disk, or a refused attempt's folder
                os.utime(file)

    toucher = threading.Thread(target=touch, name="set-up time", daemon=True)
    toucher.start()
    try:
        yield
    finally:
        ended.set()
        toucher.join()


def set_up_time(attempt: Path) -> SetUpTime | None:
    """Read an attempt's note; None without a whole one."""
    file = attempt / FILE
    noted = read_json(file)
    started_at, num_devices = noted.get("started_at"), noted.get("num_devices")
    if not isinstance(started_at, int | float) or not isinstance(num_devices, int):
        return None
    return SetUpTime(started_at=started_at, seen_at=max(started_at, file.stat().st_mtime), num_devices=num_devices)
