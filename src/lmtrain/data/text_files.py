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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast, final

import fsspec
import pyarrow as pa

from lmtrain.errors import LMTRAIN_ERRORS, DataError, EnvironmentProblem, wrong
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
MOST_CONTENT_BYTES, MOST_TIMES = 1 << 30, 1000  # of a compressed file; gzip itself ends at 1,032 times
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
        return path.with_suffix("") if path.suffix.lower() in DECOMPRESSORS else path


def local_file(path: Path, *, name: str, is_named: bool = False, is_searched_for: bool = False) -> FoundFile:
    """Return the facts of a file of this machine."""
    status = path.stat()
    return FoundFile(
        name=name,
        address=str(path.resolve()),
        num_bytes=status.st_size,
        changed=str(status.st_mtime_ns),
        is_named=is_named,
        is_searched_for=is_searched_for,
    )


@final
class Reading:
    """Notes of one pass over files, on what was repaired or ignored."""

    def __init__(self) -> None:
        """Begin before the first file."""
        self.num_replaced = 0
        self.first_replaced: str | None = None
        self.unknown_keys = Counter[str]()

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
class PlainBytes(io.RawIOBase):
    """A file's decompressed content in UTF-8, read forwards, without a byte order mark; UTF-16 is converted."""

    def __init__(self, stream: Any, *, raw: Any, address: str, bounds_memory: bool = False) -> None:
        """Read from a stream over the bytes of `raw`."""
        self._stream, self._raw, self._address = stream, raw, address
        self._bounds_memory = bounds_memory
        self._from_utf_16: codecs.IncrementalDecoder | None = None
        self._pending = b""
        self._num_read = 0

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Put the next bytes into a buffer; 0 at the end."""
        self._pending = self._pending or self._next(len(buffer))
        length = min(len(buffer), len(self._pending))
        buffer[:length] = self._pending[:length]
        self._pending = self._pending[length:]
        return length

    def _next(self, num_bytes: int) -> bytes:
        is_first = self._num_read == 0
        content = self._decompressed(num_bytes)
        if is_first and content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            self._from_utf_16 = codecs.getincrementaldecoder("utf-16")(errors="replace")
        if self._from_utf_16 is None:
            return content.removeprefix(codecs.BOM_UTF8) if is_first else content
        while not (text := self._from_utf_16.decode(content, final=not content)) and content:
            content = self._decompressed(num_bytes)
        return text.encode()

    def _decompressed(self, num_bytes: int) -> bytes:
        try:
            with bounded_memory() if self._bounds_memory else nullcontext():
                content: bytes = self._stream.read(num_bytes)
        except DAMAGES as problem:
            raise damaged(self._address, f"after {self._num_read:,} bytes of content", problem) from problem
        self._num_read += len(content)
        if self._num_read > MOST_CONTENT_BYTES + MOST_TIMES * (num_packed := int(self._raw.tell())):
            times = f"{self._num_read:,} bytes of content are in the first {num_packed:,}"
            raise DataError(f"{self._address}: {times}; unpack it yourself, or leave it out.")
        return content


@contextmanager
def open_raw(file: FoundFile) -> Generator[Any, None, None]:
    """Open a file's own bytes."""
    if file.is_local:
        try:
            raw = Path(file.address).open("rb")  # noqa: SIM115  (closed below)
        except OSError as problem:
            raise unreadable(file.address, problem) from problem
    else:
        with store_problems(file.address):
            raw = cast("Any", fsspec.open(file.address, "rb")).open()
    with raw:
        yield raw


@contextmanager
def open_plain(file: FoundFile) -> Generator[io.BufferedReader, None, None]:
    """Open a file for reading its content."""
    with open_raw(file) as raw:
        suffix = PurePosixPath(file.name).suffix.lower()
        stream = DECOMPRESSORS[suffix](raw) if suffix in DECOMPRESSORS else raw
        # The header of an xz file may ask for a dictionary of 4 GiB.
        plain = PlainBytes(stream, raw=raw, address=file.address, bounds_memory=suffix == ".xz")
        yield io.BufferedReader(plain, CHUNK_BYTES)


def is_text(file: FoundFile) -> bool:
    """Return whether a file begins with UTF-8 text: whole characters, and no NUL byte."""
    with open_plain(file) as content:
        beginning = content.read(LOOKED_AT_BYTES)
        is_whole = not content.read(1)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning, is_whole)  # else a character may be cut at the end
    except UnicodeDecodeError:
        return False
    return b"\0" not in beginning


def numbered_lines(
    content: io.BufferedReader, *, max_bytes: int = MAX_LINE_BYTES
) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number from 1, without its end; None for a line that is too long to hold."""
    number = 0
    while line := content.readline(max_bytes + 1):
        number += 1
        is_whole = line.endswith(b"\n") or len(line) <= max_bytes
        yield number, line.removesuffix(b"\n").removesuffix(b"\r") if is_whole else None
        while not line.endswith(b"\n") and (line := content.readline(CHUNK_BYTES)):
            pass


def read_text_parts(file: FoundFile, reading: Reading) -> Iterator[tuple[str, str | None]]:
    """Yield a text file whole under its name, or one of more than 16 MB in parts `name#0`, `name#1`, ...

    A part has about a million characters and ends with a paragraph, else a line, else a word. None: it is not text.

    Raises:
        DataError: A file that was named itself is not text.
    """
    with open_plain(file) as content:
        first = content.read(MAX_WHOLE_BYTES + 1)
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
    except FileNotFoundError as problem:
        if problem.__cause__ is None:  # else a web server that was not reached
            raise DataError(f"source.paths: no file at {address}.") from problem
        raise EnvironmentProblem(f"source.paths: {address} cannot be reached: {problem.__cause__}.") from problem
    except Exception as problem:
        if "Protocol not known" in str(problem):
            raise wrong("source.paths", "a path or an address of a store", address) from problem
        why = f"{type(problem).__name__}: {one_line(problem)}"
        raise EnvironmentProblem(f"source.paths: {address} cannot be reached: {why}.") from problem


def damaged(address: str, where: str, problem: Exception) -> DataError:
    """Return the error for a truncated or undecodable file."""
    return DataError(f"{address} is damaged {where}: {one_line(problem).rstrip('.')}. Fetch it again, or leave it out.")


def unreadable(path: object, problem: OSError) -> DataError:
    """Return the error for an unreadable file or folder."""
    return DataError(f"{path} cannot be read: {problem.strerror or problem}. Make it readable, or leave it out.")


def _parts(first: bytes, content: io.BufferedReader) -> Iterator[bytes]:
    held, start = first, 0
    while True:
        if len(held) - start < 2 * PART_BYTES:
            held, start = held[start:] + content.read(MAX_WHOLE_BYTES), 0
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
