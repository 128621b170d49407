"""The file that a flag names, such as `--prompts FILE`: its text or its rows, read as the files of a source are."""

from collections.abc import Collection, Iterator
from pathlib import Path

from lmtrain.data.row_files import SUFFIXES, Delimited, Row, TableFormat, read_rows
from lmtrain.data.row_shapes import RowShape
from lmtrain.data.text_files import FoundFile, Reading, local_file, open_plain
from lmtrain.errors import ConfigurationError, DataError, suggest_path
from lmtrain.tokenizers.conversation import ConversationError


def read_texts(path: Path, *, flag: str) -> list[str]:
    """Return the one text of a file, or the text of each row of a table."""
    file = _found(path, flag)
    if _format_of(file) is None:
        try:
            with open_plain(file) as content:
                texts = [Reading().decode(content.read(), where=file.address)]
        except ValueError as problem:
            raise DataError(f"{flag}: {path} must be UTF-8 text, but it {problem}.") from problem
    else:
        shape = RowShape("text")
        rows = read_named_rows(path, shape.wanted, flag=flag)
        texts = [_text_of(row, shape, row_id) for row_id, row in rows]
    if not any(texts):
        raise DataError(f"{flag}: {path} is empty.")
    return texts


def read_named_rows(path: Path, columns: Collection[str], *, flag: str) -> Iterator[tuple[str, Row]]:
    """Yield the id and the content of each row of a table: JSON lines or an array, csv, tsv or parquet."""
    file = _found(path, flag)
    kind = _format_of(file) or "json_lines"
    for row_id, row in read_rows(file, kind, columns, Reading(), dialect=Delimited()):
        if isinstance(row, str):
            raise DataError(f"{flag}: {row_id} is {row}.")
        yield row_id, row


def _text_of(row: Row, shape: RowShape, row_id: str) -> str:
    content = shape.content(row, Reading())
    if isinstance(content, ConversationError):
        raise DataError(f"{row_id}: {content}")
    assert isinstance(content, str)
    return content


def _format_of(file: FoundFile) -> TableFormat | None:
    return SUFFIXES.get(file.plain_name.suffix.lower())


def _found(path: Path, flag: str) -> FoundFile:
    if not path.is_file():
        raise ConfigurationError(f"{flag}: {path} is not a file.{suggest_path(path)}")
    return local_file(path, name=path.name, is_named=True)
