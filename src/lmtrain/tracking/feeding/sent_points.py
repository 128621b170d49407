"""Points of a run that a tracker lacks: each curve's highest step sent is kept beside the run."""

from pathlib import Path
from typing import Any

from lmtrain.tracking import atomic_files
from lmtrain.tracking.run_log import Point


class SentPoints:
    """The points sent of each curve to a store, by its highest step and by the older steps after it; another lacks all.

    An older step comes from the score of an earlier checkpoint.
    """

    def __init__(self, path: Path, *, store: str) -> None:
        self._path = path
        state = atomic_files.read_json(path)
        known = state if state.get("store") == store else {}
        self._state: dict[str, Any] = {"highest": {}, "late": {}, **known, "store": store}
        self._read: dict[str, int] = {}  # of each curve the highest step read in the log

    def take_missing(self, point: Point) -> dict[str, float]:
        """Return the point's metrics not yet sent, the log being read from its first point; they count as sent."""
        return {key: value for key, value in point.metrics.items() if self._take(key, point.step)}

    def _take(self, key: str, step: int) -> bool:
        read, highest, late = self._read.get(key, -1), self._state["highest"], self._state["late"]
        self._read[key] = max(read, step)
        if step > highest.get(key, -1):
            highest[key] = step
            return True
        if step < read and step not in late.get(key, ()):
            late[key] = [*late.get(key, ()), step]
            return True
        return False

    def keep(self) -> None:
        """Write the steps sent."""
        atomic_files.write_json(self._path, self._state)
