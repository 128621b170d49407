"""Tables of text: comma- or tab-separated, the first line names the columns; a quoted field may hold line ends."""

import csv
from collections.abc import Iterator

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.columns import Column
from data_pipelines.sources.compression import PlainBytes, open_plain
from data_pipelines.sources.formats.lines import MAX_LINE_BYTES, numbered_lines
from data_pipelines.sources.formats.reading import FileReading
from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.utf8 import Utf8
from lmtrain.errors import DataError


def read_delimited(
    file: FoundFile, column: Column, reading: FileReading, *, delimiter: str
) -> Iterator[Document | Skipped]:
    """Yield each row's document as `name:line number`, the line being the row's last.

    Raises:
        DataError: The column is not there, a quote is never closed, or a line is no text: what follows could be
            anything.
    """
    with open_plain(file) as content, reading.of(content):
        lines = _Lines(content, reading.utf8, address=file.address)
        rows = _rows(lines, file, delimiter)
        header = next(rows, None)
        if header is None:
            return
        column.require_in(header, table=file.address)
        for row in rows:
            row_id = f"{file.name}:{lines.number}"
            if len(row) != len(header):
                yield Skipped(row_id, "a row with more or fewer fields than columns")
            else:
                yield column.document(dict(zip(header, row, strict=True)), row_id)


def check_delimited(file: FoundFile, column: Column, *, delimiter: str) -> None:
    """Refuse a file whose first line does not name the column.

    Raises:
        DataError: The message lists the columns that there are.
    """
    with open_plain(file) as content:
        header = next(_rows(_Lines(content, Utf8(), address=file.address), file, delimiter), None)
    if header is not None:
        column.require_in(header, table=file.address)


def _rows(lines: "_Lines", file: FoundFile, delimiter: str) -> Iterator[list[str]]:
    csv.field_size_limit(MAX_LINE_BYTES)  # of the whole process, and far too low as it comes
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    first = 1
    try:
        for row in rows:
            if row:
                yield row
            first = lines.number + 1
    except csv.Error as problem:
        msg = f"{file.address}:{first} is not a row of a table: {problem} (a quote that is never closed?)"
        raise DataError(f"{msg}; correct it, or leave the file out.") from problem


class _Lines(Iterator[str]):
    """Lines of text with their ends, as `csv` wants them; `number` is that of the last."""

    def __init__(self, content: PlainBytes, utf8: Utf8, *, address: str) -> None:
        self._lines = numbered_lines(content)
        self._utf8 = utf8
        self._address = address
        self.number = 0

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        where = f"{self._address}:{self.number}"
        if line is None:
            raise DataError(f"{where} is longer than {MAX_LINE_BYTES // 1_000_000} MB; split it, or leave it out.")
        try:
            return self._utf8.decode(line, where=where) + "\n"
        except ValueError as problem:
            raise DataError(f"{where} is not UTF-8 text: it {problem}. Convert it, or leave it out.") from problem
