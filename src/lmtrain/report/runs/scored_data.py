"""The prepared data behind a run's scores: that of the attempt of each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtrain.report.runs.attempts import read_attempts
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import DATA_OF_ATTEMPT, RunFolder
from lmtrain.tracking.run_log import Point


def data_behind(folder: Path, point: Point) -> str | None:
    """Return the fingerprint of the data of a point's attempt, None where nobody noted it."""
    noted = {
        int(each.name): read_json(each / DATA_OF_ATTEMPT).get("fingerprint") for each in RunFolder(folder).attempts()
    }
    found = next(iter(noted.values()), None)
    if any(each != found for each in noted.values()):  # else nobody's events, which may be long, are read
        begun = [attempt.number for attempt in read_attempts(folder) if attempt.started_at <= point.time]
        found = noted.get(begun[-1]) if begun else None
    return None if found is None else str(found)


def is_of_earlier_data(folder: Path, point: Point, dataset: Mapping[str, Any]) -> bool:
    """Tell whether a point was measured before the run went on with other data, that of its dataset.json."""
    behind, now = data_behind(folder, point), dataset.get("fingerprint")
    return None not in (behind, now) and behind != now
