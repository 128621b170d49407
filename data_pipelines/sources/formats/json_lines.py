"""JSON lines: an object a line, its text or its messages under one key."""

import json
from collections.abc import Iterator
from typing import Any, cast

from pydantic_core import from_json

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.columns import Column
from data_pipelines.sources.compression import open_plain
from data_pipelines.sources.formats.lines import MAX_LINE_BYTES, numbered_lines
from data_pipelines.sources.formats.reading import FileReading
from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.utf8 import Utf8
from lmtrain.errors import DataError

CHECKED_LINES = 100


def read_json_lines(file: FoundFile, column: Column, reading: FileReading) -> Iterator[Document | Skipped]:
    """Yield each line's document as `name:line number`; a line without one says why."""
    with open_plain(file) as content, reading.of(content):
        for number, line in numbered_lines(content):
            line_id = f"{file.name}:{number}"
            if line is None:
                yield Skipped(line_id, f"a line of more than {MAX_LINE_BYTES // 1_000_000} MB")
            elif line and not line.isspace():
                row = None if column.is_messages else _plain_row_of(line)
                row = _row_of(line, reading.utf8, where=f"{file.address}:{number}") if row is None else row
                yield Skipped(line_id, row) if isinstance(row, str) else column.document(row, line_id)


def check_json_lines(file: FoundFile, column: Column) -> None:
    """Refuse a file whose first hundred lines have no such column, or no JSON.

    Raises:
        DataError: The message lists the columns that there are, or shows the first line that is no JSON object.
    """
    columns: dict[str, None] = {}
    problem = ""
    with open_plain(file) as content:
        for number, line in numbered_lines(content):
            if number > CHECKED_LINES:
                break
            if line is None or not line.strip():
                continue
            row = _row_of(line, Utf8(), where="")
            if isinstance(row, str):
                problem = problem or f"{file.address}:{number} is {row}"
            else:
                columns.update(dict.fromkeys(row))
    if problem and not columns:
        raise DataError(f"{problem}; JSON lines are an object a line, such as {{'{column.name}': ...}}.")
    if columns:
        column.require_in(columns, table=file.address)


def _plain_row_of(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line sound in every way, in a quarter of `json`'s time; else None."""
    try:
        content: object = from_json(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None


def _row_of(line: bytes, utf8: Utf8, *, where: str) -> dict[str, Any] | str:
    try:
        text = utf8.decode(line, where=where)
    except ValueError:
        return "not UTF-8 text"
    try:
        content: object = json.loads(text)
    except ValueError:
        return "not JSON"
    except RecursionError:
        return "JSON nested too deep"
    return cast("dict[str, Any]", content) if isinstance(content, dict) else "not a JSON object"
