"""The report of the harness, a JSON file: parts with their rows, whole after every row, joined with others."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.hopper.rows import Row

NAMED_BY: Final = (  # of all parts; a row has some of them
    *("model", "variant", "precision", "window_pattern", "loop", "path", "start", "what"),
    *("name", "product", "dtype", "num_tokens", "head_width", "window_tokens", "kernel", "loss", "step", "copy"),
)


def keep_row(rows: list[Row], row: Row) -> None:
    """Put a row into the place of the one of the same measurement; a measured one gives way to a measured one alone."""
    place = next((place for place, held in enumerate(rows) if named(held) == named(row)), None)
    if place is None:
        rows.append(row)
    elif "not_measured" not in row or "not_measured" in rows[place]:
        rows[place] = row


def named(row: Row) -> tuple[Any, ...]:
    """Return what a row is of."""
    return tuple(row.get(key) for key in NAMED_BY)


def read(path: Path) -> dict[str, Any]:
    """Return the report at a path, or one without any part."""
    return json.loads(path.read_text()) if path.is_file() else {"device": "", "is_toy": False, "parts": {}}


def write(report: dict[str, Any], path: Path) -> None:
    """Write a report beside its place and move it there: a cut-off call leaves the one before."""
    aside = path.with_suffix(".json.partial")
    aside.write_text(json.dumps(report, indent=1) + "\n")
    aside.replace(path)


def require_same_device(report: dict[str, Any], other: dict[str, Any], *, path: Path) -> None:
    """Refuse to join reports of two devices.

    Raises: ValueError where both have one and they differ.
    """
    if report["device"] and (report["device"], report["is_toy"]) != (other["device"], other["is_toy"]):
        shown = [f"{one['device']}{' (a toy)' * one['is_toy']}" for one in (other, report)]
        raise ValueError(f"{path} is of {shown[0]}, and the rows before of {shown[1]}: one page each.")


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """Return one report of several, each perhaps begun in an empty folder, later ones last.

    Raises:
        ValueError: They are of different devices, or a file is missing.
    """
    found: dict[str, Any] = {"device": "", "is_toy": False, "parts": {}}
    for path in paths:
        if not path.is_file():
            raise ValueError(f"--merge {path}: there is no such file")
        other = read(path)
        require_same_device(found, other, path=path)
        parts = found["parts"]
        found |= other | {"parts": parts}
        for name, rows in other["parts"].items():
            for row in rows:
                keep_row(parts.setdefault(name, []), row)
    return found
