"""Parquet files, one batch of rows in memory at a time, and only the wanted column."""

import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast, final

import pyarrow as pa
import pyarrow.parquet as pq

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.columns import Column
from data_pipelines.sources.compression import (
    PlainBytes,
    damaged,
    is_compressed,
    most_content_bytes,
    open_plain,
    open_raw,
)
from data_pipelines.sources.formats.reading import FileReading
from data_pipelines.sources.found_file import FoundFile
from lmtrain.errors import LMTRAIN_ERRORS, DataError
from lmtrain.storage.bounded_memory import MORE_BYTES, bounded_memory
from lmtrain.storage.text_sizes import num_characters

ROWS_AT_ONCE = 64
CHUNK_BYTES = 1 << 20
MOST_UNPACKED_BYTES, MOST_TIMES = 1 << 24, 200  # parquet is packed already: little is left to compress
DAMAGES = (pa.ArrowException, OSError, EOFError, ValueError, MemoryError)


def read_parquet(file: FoundFile, column: Column, reading: FileReading) -> Iterator[Document | Skipped]:
    """Yield each row's document as `name:row number`, from 1.

    Raises:
        DataError: The column is not there or holds no text, or the file is damaged.
    """
    number = num_bytes = 0
    with _opened(file) as table, reading.of(position := _Rows(table, file.num_bytes)):
        _require(column, table, file)
        batches: Iterator[Any] = table.iter_batches(ROWS_AT_ONCE, columns=[column.name], use_threads=False)
        while (found := _next_values(batches, file, number)) is not None:
            values, num_batch_bytes = found
            num_bytes += num_batch_bytes  # of equal texts a file keeps one: a few bytes hold any number of them
            _require_size(num_bytes, file)
            position.num_rows_behind = number
            for value in values:
                number += 1
                yield column.document({column.name: value}, f"{file.name}:{number}")


def check_parquet(file: FoundFile, column: Column) -> None:
    """Refuse a file without the column, or with a column of neither text nor messages.

    Raises:
        DataError: The message lists the columns that there are.
    """
    with _opened(file) as table:
        _require(column, table, file)


@contextmanager
def _opened(file: FoundFile) -> Generator[Any, None, None]:
    with open_raw(file) as raw, tempfile.TemporaryFile() as unpacked:
        if is_compressed(file.name):  # its footer is read first: unpack it on the disk
            with open_plain(file) as content:
                _unpack(content, unpacked, most=MOST_UNPACKED_BYTES + MOST_TIMES * file.num_bytes, file=file)
        try:
            with bounded_memory():
                table = pq.ParquetFile(unpacked if is_compressed(file.name) else raw)
        except DAMAGES as problem:
            raise damaged(file.address, "(no parquet file, or a broken one)", problem) from problem
        with table:
            yield table


def _unpack(content: PlainBytes, unpacked: BinaryIO, *, most: int, file: FoundFile) -> None:
    """Write a file without its compression; a few bytes could fill any disk."""
    while chunk := content.read(CHUNK_BYTES):
        unpacked.write(chunk)
        if unpacked.tell() > most:
            raise DataError(f"{file.address} unpacks to more than {most:,} bytes; unpack it yourself, or leave it out.")


def _require(column: Column, table: Any, file: FoundFile) -> None:
    schema: Any = table.schema_arrow
    column.require_in(schema.names, table=file.address)
    kind: Any = schema.field(column.name).type
    fits = _is_list if column.is_messages else _is_text
    if not fits(kind) and not _is_text(kind):
        others = ", ".join(field.name for field in schema if fits(field.type)) or "none"
        wanted = "messages" if column.is_messages else "text"
        msg = f"{column.key}={column.name} of {file.address} holds {kind} instead of {wanted}; columns that fit: "
        raise DataError(f"{msg}{others}.")
    _require_size(_stated_bytes(column, table), file)


def _require_size(num_bytes: int, file: FoundFile) -> None:
    if num_bytes > (most := most_content_bytes(file.num_bytes)):
        rule = f"holds more than {most:,} bytes of this column, in {file.num_bytes:,} bytes"
        raise DataError(f"{file.address} {rule}; write it as JSON lines yourself, or leave it out.")


def _stated_bytes(column: Column, table: Any) -> int:
    """Return what the footer says that a column's pages take without their compression."""
    groups = (table.metadata.row_group(number) for number in range(table.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] == column.name)


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _next_values(batches: Iterator[Any], file: FoundFile, number: int) -> tuple[list[Any], int] | None:
    """Return the values of the next rows and their bytes, None at the end."""
    try:
        with bounded_memory():
            batch = next(batches, None)
            if batch is None:
                return None
            values = cast("list[Any]", batch.column(0).to_pylist())
            return values, max(int(batch.nbytes), num_characters(values))
    except LMTRAIN_ERRORS:
        raise
    except MemoryError as problem:
        what = f"{file.address}: {ROWS_AT_ONCE} rows after row {number:,} take more than {MORE_BYTES >> 30} GiB"
        raise DataError(f"{what}; write it as JSON lines yourself, or leave it out.") from problem
    except DAMAGES as problem:
        raise damaged(file.address, f"after row {number:,}", problem) from problem


@final
class _Rows:
    """How far into a parquet file the reading is, by rows: the file itself is read here and there."""

    def __init__(self, table: Any, num_bytes: int) -> None:
        self._table, self._num_bytes = table, num_bytes
        self.num_rows_behind = 0

    def num_raw_bytes(self) -> int:
        return self._num_bytes * self.num_rows_behind // max(int(self._table.metadata.num_rows), 1)
