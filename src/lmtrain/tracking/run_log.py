"""The truth about a run's curves: metrics.jsonl, one whole JSON object a line, appended.

A line is {"time": unix seconds, "step": int, "tokens": int, "metrics": {NAME: float, ...}}. JSON has no number
for nan and infinities: such a value is one of the strings "nan", "inf", "-inf", readable by float() of most languages.
"""

import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.metric_names import VALIDATION_BYTES
from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.tracking import atomic_files
from lmtrain.tracking.atomic_files import LineFile

_LOG = logging.getLogger(__name__)
OF_VALIDATION = "validation/"  # its scores' names begin so
NAME: Final = "metrics.jsonl"
_ENCODE = json.JSONEncoder(allow_nan=False).encode  # json.dumps makes an encoder a line, unless all is its default


@dataclass(frozen=True)
class Point:
    """The metrics of one step; time in unix seconds."""

    time: float
    step: int
    tokens: int
    metrics: dict[str, float]


def newest(points: Sequence[Point], metric: str) -> float | None:
    """Return a metric's last value, None where it was never measured."""
    found = newest_point(points, metric)
    return found.metrics[metric] if found else None


def newest_point(points: Sequence[Point], metric: str) -> Point | None:
    """Return the last point with a metric, None where it was never measured."""
    return next((point for point in reversed(points) if metric in point.metrics), None)


def furthest(points: Sequence[Point]) -> Point:
    """Return the last point of the highest step: scores of an earlier checkpoint may come after it."""
    return max(reversed(points), key=lambda point: point.step, default=Point(0.0, 0, 0, {}))


def held_out_bytes(point: Point) -> int | None:
    """Return the bytes of held-out text behind a point's scores, None if it does not say."""
    found = point.metrics.get(VALIDATION_BYTES)
    return None if found is None else int(found)


class RunLog:
    """Append points to a folder's metrics.jsonl; whole lines a write, so a reader never waits for one."""

    def __init__(self, folder: Path) -> None:
        self.path, self._folder = folder / NAME, folder
        self._file = LineFile(folder, NAME)
        self._latest: dict[str, Point] = {}

    def latest(self, metric: str) -> Point | None:
        """Return the last point with this metric appended here, None when there was none."""
        return self._latest.get(metric)

    def extend(self, points: Sequence[Point]) -> None:
        """Add points in one write; on a full disk they wait in memory for the next one, and a line says so once."""
        was_waiting = bool(self._file.waiting)
        full = self._file.append([format_point(point) for point in points])
        if full and not was_waiting:
            _LOG.error("%s The curves wait in memory.", atomic_files.storage_problem(self.path, full))
        elif was_waiting and not full:
            _LOG.warning("%s has its missing points.", self.path)
        for point in points:
            self._latest.update(dict.fromkeys(point.metrics, point))

    def sync(self) -> None:
        """Wait until all points are on the disk: a checkpoint that outlives a power cut has its curves."""
        try:
            os.fsync(self._file.descriptor)
        except OSError as error:
            raise atomic_files.storage_problem(self.path, error) from error

    def truncate_after(self, step: int) -> int:
        """Drop the points after step, for a resume from it; return how many lines there were.

        A power cut can leave lines in part between whole ones, all later than the last `sync`; they go as well.
        """
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if (found := _parse(line)) is not None and found.step <= step]
        if len(kept) == len(lines):
            return 0
        atomic_files.write_bytes(self.path, b"".join(kept))
        self._file.close()
        self._file = LineFile(self._folder, NAME)
        return len(lines) - len(kept)

    def close(self) -> None:
        """Make all points durable and give the file back; closing twice is fine.

        Raises:
            EnvironmentProblem: The disk is still full, and the waiting points are lost.
        """
        if self._file.descriptor < 0:
            return
        try:
            if problem := self._file.append([]):
                raise problem
            os.fsync(self._file.descriptor)
        except OSError as error:
            raise atomic_files.storage_problem(self.path, error) from error
        finally:
            self._file.close()


def logged_points(folder: Path) -> list[Point]:
    """Return the points of a run's log, none where it has no log yet; raises as `read_points`."""
    log = folder / "metrics.jsonl"
    return list(read_points(log)) if log.exists() else []


def read_points(path: Path) -> Iterator[Point]:
    """Yield the points of a metrics.jsonl in order, without a torn last line.

    Raises:
        DataError: A line before the last is not a point, or the file is a pipe or a device.
    """
    try:
        foreign_json.require_an_end(path)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise DataError(f"{path} is not a run log: {problem.strerror}; restore it, or name another run.") from problem
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield parse_point(line)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path} line {number} is not a point of a run log: {error}.") from error


def parse_point(line: bytes) -> Point:
    """Read one line of a run log.

    Raises:
        ValueError, KeyError or TypeError: It is not one.
    """
    row = foreign_json.parse(line)
    if not isinstance(row["metrics"], dict):
        raise TypeError("its metrics are not an object")
    metrics = {sys.intern(str(key)): float(value) for key, value in row["metrics"].items()}  # one of each name
    return Point(float(row["time"]), int(row["step"]), int(row["tokens"]), metrics)


def format_point(point: Point) -> str:
    """Write one line of a run log, its newline included."""
    numbers = ((key, float(value)) for key, value in point.metrics.items())
    metrics = {key: value if math.isfinite(value) else str(value) for key, value in numbers}
    row = {"time": round(point.time, 3), "step": point.step, "tokens": point.tokens, "metrics": metrics}
    return _ENCODE(row) + "\n"


READ_BYTES = 1 << 20
LONGEST_LINE_BYTES: Final = 1 << 24  # a longer one is no point, and nothing before it is looked for


@dataclass(frozen=True)
class LogOffset:
    """A byte offset in one incarnation of a file; a resume with dropped points makes a new file."""

    inode: int = 0
    offset: int = 0


def read_after(path: Path, place: LogOffset, *, read_bytes: int = READ_BYTES) -> tuple[list[Point], LogOffset]:
    """Return the points of whole lines after a place, as many as fit into read_bytes, and the place after them.

    A new file is read from its start.
    """
    try:
        foreign_json.require_an_end(path)
        with path.open("rb") as file:
            found = path.stat()
            is_same = found.st_ino == place.inode and found.st_size >= place.offset
            start = place.offset if is_same else 0
            file.seek(start)
            block = file.read(read_bytes)
    except FileNotFoundError:
        return [], place
    whole = block[: block.rfind(b"\n") + 1]
    points = [point for line in whole.splitlines() if (point := _parse(line)) is not None]
    return points, LogOffset(found.st_ino, start + len(whole))


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
