"""Rows of public data sets from local copies, in the layout of their repositories: parquet or JSON lines."""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyarrow import ArrowException, parquet

from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.bounded_memory import bounded_memory, num_characters
from lmtrain.storage.damage import one_line

SUFFIXES: Final = (".parquet", ".jsonl", ".jsonl.gz")
MAX_BYTES: Final = 1 << 26  # of a file's rows, without any compression; the largest of these sets have a tenth
MAX_ROWS: Final = 1 << 20
ROWS_AT_ONCE: Final = 64
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
    rows: list[Any] = [row for path in files for row in _rows(path, columns)]
    where = ", ".join(map(str, files))
    if not rows:
        raise DataError(f"{where}: no rows; copy the data set again.")
    for number, row in enumerate(rows, start=1):
        for name, kind in columns.items():
            if not isinstance(row, dict) or not isinstance(row.get(name), kind):
                has = ", ".join(map(str, row)) if isinstance(row, dict) else "none"
                raise DataError(f"{where} row {number} has no {name} of type {kind.__name__}; its columns: {has}.")
    return rows


def _rows(path: Path, columns: Mapping[str, type]) -> list[Any]:
    try:
        if path.suffix == ".parquet":
            with bounded_memory(), parquet.ParquetFile(path) as table:
                return list(_table_rows(table, columns))
        return [foreign_json.parse(line) for line in _unpacked(path).splitlines() if line.strip()]
    except (OSError, ValueError, EOFError, zlib.error, MemoryError, ArrowException) as problem:
        raise DataError(f"{path} is damaged ({one_line(problem)}); copy the data set again.") from problem


def _table_rows(table: Any, columns: Mapping[str, type]) -> Iterator[Row]:
    """Yield rows with the wanted columns; of equal values a file keeps one, so that a few bytes may hold any number."""
    wanted = list(columns) if columns.keys() <= set(table.schema_arrow.names) else None  # None: all, for the refusal
    num_rows = num_bytes = 0
    for batch in table.iter_batches(ROWS_AT_ONCE, columns=wanted, use_threads=False):
        rows = batch.to_pylist()
        num_rows += batch.num_rows
        num_bytes += max(batch.nbytes, num_characters(rows))
        if num_rows > MAX_ROWS or num_bytes > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_ROWS:,} rows, or {MAX_BYTES:,} bytes of them")
        yield from rows


def _unpacked(path: Path) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    return content
