"""Read the rows of a table: JSON lines, a JSON array, comma- or tab-separated values, or parquet.

A row is a mapping of columns, or the reason why it could not be read. Every file opens as in `text_files`.
"""

import csv
import io
import json
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import from_json

from lmtrain.data.text_files import (
    MAX_LINE_BYTES,
    FoundFile,
    Reading,
    damaged,
    numbered_lines,
    open_plain,
    open_raw,
)
from lmtrain.errors import DataError
from lmtrain.storage.bounded_memory import MORE_BYTES, bounded_memory

TableFormat = Literal["json_lines", "csv", "tsv", "parquet"]
Quoting = Literal["minimal", "none"]
Row = Mapping[str, Any]

SUFFIXES: Final[Mapping[str, TableFormat]] = {
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".json": "json_lines",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
CHECKED_ROWS: Final = 100
MAX_ARRAY_BYTES: Final = 1 << 28  # of a JSON array or object, which is held whole
ROWS_AT_ONCE: Final = 64
DAMAGES = (pa.ArrowException, OSError, EOFError, ValueError, MemoryError)


@dataclass(frozen=True, kw_only=True)
class Delimited:
    """The dialect of separated values; None is a comma with quotes for csv, and a tab without quotes for tsv."""

    delimiter: str | None = None
    quoting: Quoting | None = None


def read_rows(
    file: FoundFile, kind: TableFormat, columns: Collection[str], reading: Reading, *, dialect: Delimited
) -> Iterator[tuple[str, Row | str]]:
    """Yield the id and the row, or why it cannot be read; of parquet, only these columns, where they exist.

    The id is `name:line number`, or `name:row number` of parquet and arrays.

    Raises:
        DataError: The file is damaged, has a column twice, or has a quote that is never closed.
    """
    if kind == "parquet":
        return _parquet_rows(file, columns)
    if kind == "json_lines":
        return _json_rows(file, reading)
    return _delimited_rows(file, kind, columns, reading, dialect)


def columns_of(file: FoundFile, kind: TableFormat, *, dialect: Delimited) -> list[str] | None:
    """Return the columns of a table by its beginning; None for an empty one."""
    if kind == "parquet":
        with _opened(file) as table:
            return list(table.schema_arrow.names)
    if kind != "json_lines":
        with open_plain(file) as content:
            return next((row for _, row in _separated(content, file, kind, Reading(), dialect)), None)
    found: dict[str, None] = {}
    problem = ""
    for row_id, row in islice(_json_rows(file, Reading()), CHECKED_ROWS):
        if isinstance(row, str):
            problem = problem or f"{file.address}: {row_id} is {row}"
        else:
            found.update(dict.fromkeys(row))
    if problem and not found:
        raise DataError(f"{problem}; JSON lines hold one object per line, and an array holds objects.")
    return list(found) or None


def without_nulls(value: Any) -> Any:
    """Return a value without the nulls that arrow adds to structs for keys of other rows."""
    if isinstance(value, dict):
        return {key: without_nulls(held) for key, held in cast("dict[str, Any]", value).items() if held is not None}
    return [without_nulls(held) for held in cast("list[Any]", value)] if isinstance(value, list) else value


def _json_rows(file: FoundFile, reading: Reading) -> Iterator[tuple[str, Row | str]]:
    with open_plain(file) as content:
        lines = numbered_lines(content)
        for number, line in lines:
            if line is None:
                yield f"{file.name}:{number}", f"a line of more than {MAX_LINE_BYTES // 1_000_000} MB"
            elif line and not line.isspace():
                row = _row_of(line, reading, where=f"{file.address}:{number}")
                if isinstance(row, str) and number == 1 and line.lstrip().startswith((b"[", b"{")):
                    yield from _json_array(file, line, lines, reading)
                    return
                yield f"{file.name}:{number}", row


def _json_array(
    file: FoundFile, first: bytes, lines: Iterator[tuple[int, bytes | None]], reading: Reading
) -> Iterator[tuple[str, Row | str]]:
    """Read a file that is one array, or one object, over several lines; else its lines after all."""
    held, num_bytes = [first], len(first)
    for _, line in lines:
        held.append(line or b"")
        num_bytes += len(held[-1])
        if num_bytes > MAX_ARRAY_BYTES:
            raise DataError(f"{file.address} is JSON of more than {MAX_ARRAY_BYTES:,} bytes; write it as JSON lines.")
    whole = _parsed(b"\n".join(held), reading, where=file.address)
    if isinstance(whole, str):  # JSON lines with a bad first line
        for number, line in enumerate(held, start=1):
            if line.strip():
                yield f"{file.name}:{number}", _row_of(line, reading, where=f"{file.address}:{number}")
        return
    rows = cast("list[Any]", whole if isinstance(whole, list) else [whole])
    for number, row in enumerate(rows, start=1):
        yield f"{file.name}:{number}", row if isinstance(row, dict) else "not a JSON object"


def _row_of(line: bytes, reading: Reading, *, where: str) -> Row | str:
    content = _parsed(line, reading, where=where)
    return content if isinstance(content, (dict, str)) else "not a JSON object"


def _parsed(content: bytes, reading: Reading, *, where: str) -> Any:
    """Return the JSON content, or the reason as a text; a JSON text itself counts as a reason too."""
    try:
        found = from_json(content)  # a quarter of json's time, for sound UTF-8
    except ValueError:
        try:
            found = json.loads(reading.decode(content, where=where))
        except (json.JSONDecodeError, RecursionError):
            return "not JSON"
        except ValueError:
            return "not UTF-8 text"
    return "not a JSON object" if isinstance(found, str) else found


def _delimited_rows(
    file: FoundFile, kind: TableFormat, columns: Collection[str], reading: Reading, dialect: Delimited
) -> Iterator[tuple[str, Row | str]]:
    with open_plain(file) as content:
        rows = _separated(content, file, kind, reading, dialect)
        _, header = next(rows, (0, None))
        if header is None:
            return
        _require_once(header, columns, file)
        for number, row in rows:
            fits = len(row) == len(header)
            found = dict(zip(header, row, strict=True)) if fits else "a row with more or fewer fields than columns"
            yield f"{file.name}:{number}", found


def _separated(
    content: io.BufferedReader, file: FoundFile, kind: TableFormat, reading: Reading, dialect: Delimited
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows, each with the number of its last line; tab-separated values have no quotes (IANA)."""
    csv.field_size_limit(MAX_LINE_BYTES)  # of the whole process; the default is far too low
    quoting = dialect.quoting or ("none" if kind == "tsv" else "minimal")
    rows = csv.reader(
        _text_lines(content, reading, address=file.address),
        delimiter=dialect.delimiter or ("\t" if kind == "tsv" else ","),
        quoting=csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL,
        strict=True,
    )
    first = 1
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
            first = rows.line_num + 1
    except csv.Error as problem:
        fix = "set source.quoting=none, or correct it"
        msg = f"{file.address}:{first} is not a row of a table: {problem} (an open quote, a line end of CR alone?)"
        raise DataError(f"{msg}; {fix}.") from problem


def _text_lines(content: io.BufferedReader, reading: Reading, *, address: str) -> Iterator[str]:
    """Yield lines of text with their ends, as `csv` expects them."""
    for number, line in numbered_lines(content):
        where = f"{address}:{number}"
        if line is None:
            raise DataError(f"{where} is longer than {MAX_LINE_BYTES // 1_000_000} MB; split it, or leave it out.")
        try:
            text = reading.decode(line, where=where)
        except ValueError as problem:
            raise DataError(f"{where} is not UTF-8 text: it {problem}. Convert it, or leave it out.") from problem
        yield f"{text}\n"


def _require_once(names: list[str], wanted: Collection[str], file: FoundFile) -> None:
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1 and name in wanted]
    if twice:
        raise DataError(f"{file.address} has several columns named {', '.join(twice)}; rename all but one.")


def _parquet_rows(file: FoundFile, columns: Collection[str]) -> Iterator[tuple[str, Row | str]]:
    number = 0
    with _opened(file) as table:
        names = list(table.schema_arrow.names)
        _require_once(names, columns, file)
        chosen = [name for name in names if name in columns]
        batches: Iterator[Any] = table.iter_batches(ROWS_AT_ONCE, columns=chosen, use_threads=False)
        while (rows := _next_rows(batches, file, number)) is not None:
            for row in rows:
                number += 1
                yield f"{file.name}:{number}", {name: without_nulls(value) for name, value in row.items()}


@contextmanager
def _opened(file: FoundFile) -> Generator[Any, None, None]:
    with open_raw(file) as raw:
        try:
            with bounded_memory():
                table = pq.ParquetFile(raw)
        except DAMAGES as problem:
            raise damaged(file.address, "(not parquet, or a broken file)", problem) from problem
        with table:
            yield table


def _next_rows(batches: Iterator[Any], file: FoundFile, number: int) -> list[dict[str, Any]] | None:
    """Return the next rows, None at the end."""
    try:
        with bounded_memory():
            batch = next(batches, None)
            return None if batch is None else batch.to_pylist()
    except MemoryError as problem:
        rule = f"{ROWS_AT_ONCE} rows after row {number:,} take more than {MORE_BYTES >> 30} GiB"
        raise DataError(f"{file.address}: {rule}; write it as JSON lines yourself, or leave it out.") from problem
    except Exception as problem:  # of arrow's readers, and of its conversion of extension types
        raise damaged(file.address, f"after row {number:,}", problem) from problem
