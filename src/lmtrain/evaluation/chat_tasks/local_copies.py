"""Rows of public data sets from local copies, in the layout of their repositories: parquet or JSON lines."""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyarrow import parquet

from lmtrain.errors import DataError
from lmtrain.storage import foreign_json

SUFFIXES: Final = (".parquet", ".jsonl", ".jsonl.gz")
Row = Mapping[str, Any]


def find_files(folder: Path, data_set: str, part: str) -> list[Path]:
    """Return the test files of a data set's part, or none: `DATA_SET/PART/test*`, or without PART."""
    for place in (folder / data_set / part, folder / data_set):
        files = sorted(path for path in place.glob("test*") if path.name.endswith(SUFFIXES))
        if files:
            return files
    return []


def read_rows(files: Sequence[Path], columns: Mapping[str, type]) -> list[Row]:
    """Return the rows of files, each with these columns of these types.

    Raises:
        DataError: A file is damaged, or lacks a column.
    """
    rows = [row for path in files for row in _rows(path)]
    where = ", ".join(map(str, files))
    if not rows:
        raise DataError(f"{where}: no rows; copy the data set again.")
    for number, row in enumerate(rows, start=1):
        for name, kind in columns.items():
            if not isinstance(row.get(name), kind):
                raise DataError(
                    f"{where} row {number} has no {name} of type {kind.__name__}; its columns: {', '.join(row)}."
                )
    return rows


def _rows(path: Path) -> list[Row]:
    try:
        if path.suffix == ".parquet":
            return parquet.read_table(path).to_pylist()
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as lines:
            return [foreign_json.parse(line) for line in lines if line.strip()]
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} is damaged ({problem}); copy the data set again.") from problem
