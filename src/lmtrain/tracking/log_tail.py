"""Follow a run's metrics.jsonl while it grows, from a place valid across its readers and its resumes."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.storage import foreign_json
from lmtrain.tracking.run_log import Point, parse_point

READ_BYTES = 1 << 20
LONGEST_LINE_BYTES: Final = 1 << 24  # a longer one is no point, and nothing before it is looked for


@dataclass(frozen=True)
class LogOffset:
    """A byte offset in one incarnation of a file; a resume with dropped points makes a new file."""

    inode: int = 0
    offset: int = 0


@dataclass(frozen=True)
class PointBatch:
    """The points after a place, and the place after them."""

    points: list[Point]
    next: LogOffset


def read_after(path: Path, place: LogOffset, *, read_bytes: int = READ_BYTES) -> PointBatch:
    """Return the whole lines after place, as many as fit into read_bytes; a new file is read from its start."""
    try:
        foreign_json.require_an_end(path)
        with path.open("rb") as file:
            found = path.stat()
            is_same = found.st_ino == place.inode and found.st_size >= place.offset
            start = place.offset if is_same else 0
            file.seek(start)
            block = file.read(read_bytes)
    except FileNotFoundError:
        return PointBatch([], place)
    whole = block[: block.rfind(b"\n") + 1]
    points = [point for line in whole.splitlines() if (point := _parse(line)) is not None]
    return PointBatch(points, LogOffset(found.st_ino, start + len(whole)))


def newest_with(path: Path, metric: str, *, until: float = math.inf) -> Point | None:
    """Return a log's newest point with a metric up to a step, looked for from the log's end; None where it has none."""
    name, rest = json.dumps(metric).encode(), b""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end and len(rest) < LONGEST_LINE_BYTES:
            start = max(0, end - READ_BYTES)
            file.seek(start)
            rest, *lines = (file.read(end - start) + rest).split(b"\n")
            for line in reversed(lines if start else [rest, *lines]):
                if name in line and (point := _parse(line)) and metric in point.metrics and point.step <= until:
                    return point
            end = start
    return None


def _parse(line: bytes) -> Point | None:
    try:
        return parse_point(line)
    except (ValueError, KeyError, TypeError):
        return None  # a damaged line costs its point, not the curves
