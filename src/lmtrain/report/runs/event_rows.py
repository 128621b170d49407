"""A rank's events of a run's folder, events/rank0.jsonl."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from lmtrain.storage import foreign_json


def event_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of events, those with a name and a moment; nothing without the file."""
    if not path.is_file():
        return
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # the last line of a killed process
            row = foreign_json.parse(line)
            if isinstance(row, dict) and {"name", "start"} <= row.keys():
                yield cast("dict[str, Any]", row)


def last_step_of(folder: Path, event: str) -> int | None:
    """Return the step of the first rank's newest event of a name in a run's folder, None without one."""
    row = last_row_of(folder, event)
    return None if row is None else int(row["step"])


def last_row_of(folder: Path, event: str) -> dict[str, Any] | None:
    """Return the first rank's newest event of a name in a run's folder, None without one."""
    rows = [row for row in event_rows(folder / "events" / "rank0.jsonl") if row["name"] == event]
    return rows[-1] if rows else None
