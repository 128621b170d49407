"""Points of a run that a tracker lacks: each curve's highest step sent is kept beside the run."""

from pathlib import Path
from typing import Any

from lmtrain.tracking import atomic_files
from lmtrain.tracking.run_log import Point


class SentPoints:
    """The highest step sent of each curve to a store; another store lacks all."""

    def __init__(self, path: Path, *, store: str) -> None:
        self._path = path
        state = atomic_files.read_json(path)
        self._state: dict[str, Any] = state if state.get("store") == store else {"store": store, "highest": {}}

    def take_missing(self, point: Point) -> dict[str, float]:
        """Return the point's metrics past the highest step sent of their curves, which count as sent from here on."""
        highest: dict[str, int] = self._state["highest"]
        fresh = {key: value for key, value in point.metrics.items() if point.step > highest.get(key, -1)}
        highest |= dict.fromkeys(fresh, point.step)
        return fresh

    def keep(self) -> None:
        """Write the steps sent."""
        atomic_files.write_json(self._path, self._state)
