"""Read text files anywhere: on this machine or at an address, compressed or not, in UTF-8 or UTF-16.

Hostile files are bounded: a few compressed bytes cannot fill the memory or the disk.
"""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, cast, final

import fsspec
import pyarrow as pa

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, DataError, EnvironmentProblem, suggest
from lmtrain.storage.bounded_memory import bounded_memory
from lmtrain.storage.damage import one_line

DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda raw: pa.CompressedInputStream(raw, "zstd"),
    ".zstd": lambda raw: pa.CompressedInputStream(raw, "zstd"),
}
LOOKED_AT_BYTES = 8192
CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 64_000_000
MAX_WHOLE_BYTES = 16_000_000  # of a text file that is one document
PART_BYTES = 1_000_000  # of a longer one's parts
MOST_CONTENT_BYTES, MOST_TIMES = 1 << 30, 1000  # gzip itself ends at 1,032 times
MAX_INVALID_FRACTION = 0.01
DAMAGES = (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, MemoryError, pa.ArrowException)


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A file: its place, and the name of its documents, which does not depend on the place.

    `changed` differs whenever the content does; `is_named` where this very file was named, `is_searched_for` where it
    was found in a folder. `is_held_out`: its documents are for validation.
    """

    name: str
    address: str
    num_bytes: int
    changed: str
    is_named: bool = False
    is_searched_for: bool = False
    is_held_out: bool = False

    @property
    def is_local(self) -> bool:
        """Return whether the address is a path of this machine."""
        return "://" not in self.address

    @property
    def plain_name(self) -> PurePosixPath:
        """Return the name without the suffix of a compression."""
        path = PurePosixPath(self.name)
        return path.with_suffix("") if self.is_compressed else path

    @property
    def is_compressed(self) -> bool:
        """Return whether the name ends with the suffix of a compression."""
        return PurePosixPath(self.name).suffix.lower() in DECOMPRESSORS


class Position(Protocol):
    """Something that knows how far into a file the reading is."""

    def num_raw_bytes(self) -> int:
        """Return the bytes read so far."""
        ...


@final
class Reading:
    """The progress of one pass over files of `total_bytes`, and notes on what was repaired or ignored."""

    def __init__(self, *, total_bytes: int = 0) -> None:
        """Begin before the first file."""
        self.num_replaced = 0
        self.first_replaced: str | None = None
        self.unknown_keys = Counter[str]()
        self._total_bytes = total_bytes
        self._bytes_behind = 0
        self._open: Position | None = None

    @contextmanager
    def of(self, position: Position) -> Generator[None, None, None]:
        """Follow the reading of one file."""
        self._open = position
        try:
            yield
        finally:
            self._open = None

    def finish(self, file: FoundFile) -> None:
        """Count a file as read."""
        self._bytes_behind += file.num_bytes

    def fraction(self) -> float | None:
        """Return how much of all files has been read, or None where their sizes are unknown."""
        if not self._total_bytes:
            return None
        here = self._open.num_raw_bytes() if self._open else 0
        return min((self._bytes_behind + here) / self._total_bytes, 1.0)

    def decode(self, content: bytes, *, where: str) -> str:
        """Return the text of bytes in UTF-8; a few stray bytes become U+FFFD and are counted.

        Raises:
            ValueError: They are not text; the message says why.
        """
        if b"\0" in content:
            raise ValueError("has NUL bytes (binary?)")
        try:
            return content.decode()
        except UnicodeDecodeError:
            text = content.decode(errors="replace")
        num_invalid = text.count("\ufffd") - content.count("\ufffd".encode())
        if num_invalid > MAX_INVALID_FRACTION * len(content):
            raise ValueError(f"has {num_invalid:,} invalid sequences in {len(content):,} bytes")
        self.num_replaced += num_invalid
        self.first_replaced = self.first_replaced or where
        return text

    def notes(self) -> list[str]:
        """Return a line about replaced bytes, and one about unknown keys of messages, where there were any."""
        replaced = f"  places that are not UTF-8 and became U+FFFD: {self.num_replaced:,}, the first in "
        keys = ", ".join(f"{key} ({count:,})" for key, count in sorted(self.unknown_keys.items()))
        return [
            *([f"{replaced}{self.first_replaced}"] if self.num_replaced else []),
            *([f"  ignored keys of messages: {keys}"] if keys else []),
        ]


@final
class PlainBytes:
    """A file's decompressed content in UTF-8, read forwards, without a byte order mark; UTF-16 is converted."""

    def __init__(self, stream: Any, *, raw: Any, address: str, bounds_memory: bool = False) -> None:
        """Read from a stream over the bytes of `raw`."""
        self._stream, self._raw, self._address = stream, raw, address
        self._bounds_memory = bounds_memory
        self._from_utf_16: codecs.IncrementalDecoder | None = None
        self.num_read = 0

    def read(self, num_bytes: int) -> bytes:
        """Return the next bytes, none at the end.

        Raises:
            DataError: The compressed file is damaged, or cannot be read.
        """
        is_first = self.num_read == 0
        content = self._read(num_bytes)
        if is_first and content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            self._from_utf_16 = codecs.getincrementaldecoder("utf-16")(errors="replace")
        if self._from_utf_16 is None:
            return content.removeprefix(codecs.BOM_UTF8) if is_first else content
        while not (text := self._from_utf_16.decode(content, final=not content)) and content:
            content = self._read(num_bytes)
        return text.encode()

    def num_raw_bytes(self) -> int:
        """Return how far into the file itself the reading is."""
        return int(self._raw.tell())

    def _read(self, num_bytes: int) -> bytes:
        try:
            with bounded_memory() if self._bounds_memory else nullcontext():
                content: bytes = self._stream.read(num_bytes)
        except DAMAGES as problem:
            where = f"after {self.num_read:,} bytes of content, by byte {self.num_raw_bytes():,} of the file"
            raise damaged(self._address, where, problem) from problem
        self.num_read += len(content)
        if self.num_read > MOST_CONTENT_BYTES and self.num_read > most_content_bytes(self.num_raw_bytes()):
            times = f"{self.num_read:,} bytes of content are in the first {self.num_raw_bytes():,}"
            raise DataError(f"{self._address}: {times}; unpack it yourself, or leave it out.")
        return content


def most_content_bytes(num_bytes: int) -> int:
    """Return the most that a compressed file of this size is unpacked to."""
    return MOST_CONTENT_BYTES + MOST_TIMES * num_bytes


@contextmanager
def open_raw(file: FoundFile) -> Generator[Any, None, None]:
    """Open a file's own bytes.

    Raises:
        DataError: It cannot be read.
        EnvironmentProblem: Its store cannot be reached.
    """
    with ExitStack() as opened:
        if not file.is_local:
            with store_problems(file.address):
                raw = opened.enter_context(cast("Any", fsspec.open(file.address, "rb")).open())
        else:
            try:
                raw = opened.enter_context(Path(file.address).open("rb"))
            except OSError as problem:
                raise unreadable(file.address, problem) from problem
        yield raw


@contextmanager
def open_plain(file: FoundFile) -> Generator[PlainBytes, None, None]:
    """Open a file for reading its content."""
    with open_raw(file) as raw:
        suffix = PurePosixPath(file.name).suffix.lower()
        stream = DECOMPRESSORS[suffix](raw) if suffix in DECOMPRESSORS else raw
        # The header of an xz file may ask for a dictionary of 4 GiB.
        yield PlainBytes(stream, raw=raw, address=file.address, bounds_memory=suffix == ".xz")


def is_text(file: FoundFile) -> bool:
    """Return whether a file begins with UTF-8 text: whole characters, and no NUL byte.

    Raises:
        DataError: It cannot be read.
    """
    with open_plain(file) as content:
        beginning = content.read(LOOKED_AT_BYTES)
        is_whole = not content.read(1)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning, is_whole)  # else a character may be cut at the end
    except UnicodeDecodeError:
        return False
    return b"\0" not in beginning


def numbered_lines(content: PlainBytes, *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number from 1, without its end; None for a line that is too long to hold."""
    number = 1
    pieces: list[bytes] = []
    num_held = 0
    while chunk := content.read(CHUNK_BYTES):
        first, *others = chunk.split(b"\n")
        if not others:
            rest = first
        else:
            yield number, _joined([*pieces, first], num_held + len(first), max_bytes)
            *whole, rest = others
            for line in whole:
                number += 1
                yield number, line.removesuffix(b"\r") if len(line) <= max_bytes else None
            number += 1
            pieces, num_held = [], 0
        num_held += len(rest)
        pieces = [*pieces, rest] if num_held <= max_bytes else []
    if num_held:
        yield number, _joined(pieces, num_held, max_bytes)


def read_text_parts(file: FoundFile, reading: Reading) -> Iterator[tuple[str, str | None]]:
    """Yield a text file whole under its name, or one of more than 16 MB in parts `name#0`, `name#1`, ...

    A part has about a million characters and ends with a paragraph, else a line, else a word. None: it is not text.

    Raises:
        DataError: A file that was named itself is not text.
    """
    with open_plain(file) as content, reading.of(content):
        first = _read_exactly(content, MAX_WHOLE_BYTES + 1)
        is_whole = len(first) <= MAX_WHOLE_BYTES
        for number, part in enumerate([first] if is_whole else _parts(first, content)):
            name = file.name if is_whole else f"{file.name}#{number}"
            try:
                yield name, reading.decode(part, where=file.address)
            except ValueError as problem:
                if file.is_named:
                    msg = f"{file.address} is not UTF-8 text: it {problem}. Convert it, or leave it out."
                    raise DataError(msg) from problem
                yield name, None


@contextmanager
def store_problems(address: str) -> Generator[None, None, None]:
    """Turn the exceptions of a store's own package into one line."""
    try:
        yield
    except LMTRAIN_ERRORS:
        raise
    except ImportError as problem:
        raise EnvironmentProblem(f"source.paths: {address} needs a missing package: {problem}.") from problem
    except FileNotFoundError as problem:
        if isinstance(problem.__cause__, OSError):  # a web server that was not reached
            raise EnvironmentProblem(f"source.paths: {address} cannot be reached: {problem.__cause__}.") from problem
        raise DataError(f"source.paths: no file at {address}.") from problem
    except Exception as problem:
        protocol, known = address.partition("://")[0], fsspec.available_protocols()
        if protocol.rpartition("::")[2] not in known:
            usual = "must be a known one, as s3, gs, hf, https, file"
            msg = f"source.paths: the protocol {usual}, got {address}.{suggest(protocol, known)}"
            raise ConfigurationError(msg) from problem
        why = f"{type(problem).__name__}: {one_line(problem)}"
        raise EnvironmentProblem(f"source.paths: {address} cannot be reached: {why}.") from problem


def damaged(address: str, where: str, problem: Exception) -> DataError:
    """Return the error for a truncated or undecodable file."""
    return DataError(f"{address} is damaged {where}: {one_line(problem).rstrip('.')}. Fetch it again, or leave it out.")


def unreadable(path: object, problem: OSError) -> DataError:
    """Return the error for an unreadable file or folder."""
    return DataError(f"{path} cannot be read: {problem.strerror or problem}. Make it readable, or leave it out.")


def _joined(pieces: list[bytes], num_bytes: int, max_bytes: int) -> bytes | None:
    return None if num_bytes > max_bytes else b"".join(pieces).removesuffix(b"\r")


def _read_exactly(content: PlainBytes, num_bytes: int) -> bytes:
    """Return this many bytes, fewer only at the end: a decompressor may return fewer at a time."""
    pieces = io.BytesIO()
    while (left := num_bytes - pieces.tell()) > 0 and (piece := content.read(left)):
        pieces.write(piece)
    return pieces.getvalue()


def _parts(first: bytes, content: PlainBytes) -> Iterator[bytes]:
    held, start = first, 0
    while True:
        if len(held) - start < 2 * PART_BYTES:
            held, start = held[start:] + _read_exactly(content, MAX_WHOLE_BYTES), 0
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
