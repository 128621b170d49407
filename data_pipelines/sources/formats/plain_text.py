"""A file of text is a document; one of more than 16 MB comes in parts of about a million characters, like chapters."""

from collections.abc import Iterator

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.compression import PlainBytes, open_plain
from data_pipelines.sources.formats.reading import FileReading
from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.utf8 import Utf8
from lmtrain.errors import DataError

MAX_WHOLE_BYTES = 16_000_000
PART_BYTES = 1_000_000


def read_plain_text(file: FoundFile, reading: FileReading) -> Iterator[Document | Skipped]:
    """Yield the file as one document `name`, or as parts `name#0`, `name#1`, ...

    A part ends with a paragraph, else a line, else a word, else anywhere between two characters.

    Raises:
        DataError: A file that was named itself is binary.
    """
    with open_plain(file) as content, reading.of(content):
        first = _read_whole(content, MAX_WHOLE_BYTES + 1)
        if len(first) <= MAX_WHOLE_BYTES:
            yield _document(file.name, first, file, reading.utf8)
            return
        for number, part in enumerate(_parts(first, content)):
            yield _document(f"{file.name}#{number}", part, file, reading.utf8)


def _document(document_id: str, content: bytes, file: FoundFile, utf8: Utf8) -> Document | Skipped:
    try:
        return Document(document_id, utf8.decode(content, where=file.address))
    except ValueError as problem:
        if file.is_named:
            msg = f"{file.address} is not UTF-8 text: it {problem}. Convert it, or leave it out of source.paths."
            raise DataError(msg) from problem
        return Skipped(document_id, "not UTF-8 text")


def _read_whole(content: PlainBytes, num_bytes: int) -> bytes:
    """Return so many bytes, fewer only at the end: a decompressor may give fewer at a time."""
    pieces: list[bytes] = []
    while num_bytes > 0 and (piece := content.read(num_bytes)):
        pieces.append(piece)
        num_bytes -= len(piece)
    return b"".join(pieces)


def _parts(first: bytes, content: PlainBytes) -> Iterator[bytes]:
    held, start = first, 0
    while True:
        if len(held) - start < 2 * PART_BYTES:
            more = _read_whole(content, MAX_WHOLE_BYTES)
            held, start = held[start:] + more, 0
        if len(held) - start < 2 * PART_BYTES:  # nothing is left to read
            yield held
            return
        end = _good_end(held, start + PART_BYTES, start + 3 * PART_BYTES // 2)
        yield held[start:end]
        start = end


def _good_end(content: bytes, earliest: int, latest: int) -> int:
    for border in (b"\n\n", b"\n", b" "):
        found = content.find(border, earliest, latest)
        if found >= 0:
            return found + len(border)
    return next((end for end in range(earliest, earliest + 4) if content[end] & 0xC0 != 0x80), earliest)
