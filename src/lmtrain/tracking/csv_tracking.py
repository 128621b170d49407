"""Write a run's points as a table: metrics.csv, a row a step."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lmtrain.tracking.feeding.following import FollowingHandle, WithoutSweeps
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Status

FIRST: Final = ("step", "tokens", "time")


class CsvTracking(WithoutSweeps):
    """Keep `metrics.csv` in the run's folder: step, tokens, unix seconds, then a column a metric."""

    def start(self, run_folder: RunFolder) -> FollowingHandle:
        """Begin the table anew, with the points of earlier attempts."""
        return FollowingHandle(run_folder, "metrics.csv", lambda: CsvTable(run_folder.path / "metrics.csv"))


class CsvTable:
    """A table growing by rows, and is written again where a metric is new; a step's points share a row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = [*FIRST]
        self._row: dict[str, float] = {}  # of the newest step: it may get more metrics
        path.unlink(missing_ok=True)

    def write(self, points: Sequence[Point]) -> None:
        """Add the rows of whole steps; the newest waits for its other points."""
        rows: list[dict[str, float]] = []
        for point in points:
            if self._row and self._row["step"] != point.step:
                rows.append(self._row)
                self._row = {}
            self._row |= {"step": point.step, "tokens": point.tokens, "time": point.time, **point.metrics}
        self._add(rows)

    def close(self, status: Status) -> None:
        """Add the last row."""
        del status
        self._add([self._row] if self._row else [])

    def _add(self, rows: Sequence[Mapping[str, float]]) -> None:
        if not rows:
            return
        new = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in self._columns]
        if new or not self._path.exists():
            self._columns += new
            self._write_anew()
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerows(rows)

    def _write_anew(self) -> None:
        earlier: list[dict[str, str]] = []
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                earlier = list(csv.DictReader(file))
        with self._path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(earlier)
