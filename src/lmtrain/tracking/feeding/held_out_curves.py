"""Scores of other held-out bytes than a run's first, under names of their own: a tracker joins one name's by a line."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from lmtrain.tracking.log_tail import LogOffset, read_after
from lmtrain.tracking.run_log import OF_VALIDATION, Point, held_out_bytes

OF_OTHER_BYTES: Final = re.compile(r"^validation_of_\d+_bytes/")


class HeldOutCurves:
    """Name the scores of a run by their bytes, where these are not those of the first score in its log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._first: int | None = None

    def apart(self, points: Sequence[Point]) -> list[Point]:
        """Return the points, scores of other bytes as `validation_of_N_bytes/NAME`."""
        return [self._apart(point) for point in points]

    def _apart(self, point: Point) -> Point:
        num_bytes = held_out_bytes(point)
        if num_bytes is None or num_bytes == self._first_bytes():
            return point
        named = {name.replace(OF_VALIDATION, f"validation_of_{num_bytes}_bytes/", 1): name for name in point.metrics}
        return replace(point, metrics={new: point.metrics[name] for new, name in named.items()})

    def _first_bytes(self) -> int | None:
        """Return the bytes of the first score; a resumed run may be read from its middle."""
        place = LogOffset()
        while self._first is None:
            batch = read_after(self._log, place)
            found = (num_bytes for each in batch.points if (num_bytes := held_out_bytes(each)) is not None)
            self._first = next(found, None)
            if batch.next == place:
                break
            place = batch.next
        return self._first


def plain_name(name: str) -> str:
    """Return the name of a curve without its bytes."""
    return OF_OTHER_BYTES.sub(OF_VALIDATION, name)
