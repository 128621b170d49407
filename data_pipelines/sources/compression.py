"""Open a file for reading its plain bytes: as it is, or out of gzip, bzip2, xz or zstd, told by the suffix."""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast, final

import fsspec
import pyarrow as pa
from typing_extensions import override

from data_pipelines.sources.addresses import worded
from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.local_files import unreadable
from lmtrain.errors import DataError


def _open_zstd(raw: BinaryIO) -> BinaryIO:
    return cast("BinaryIO", pa.CompressedInputStream(raw, "zstd"))


@final
class _XzBytes(io.RawIOBase):
    """The content of an xz file, of one stream or several; a header may ask for a dictionary of 4 GiB."""

    def __init__(self, raw: Any) -> None:
        self._raw, self._stream = raw, _xz_stream()
        self._waiting, self._num_streams, self._is_between = b"", 0, True

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        while True:
            if self._stream.eof:
                self._waiting, self._stream = self._stream.unused_data, _xz_stream()
                self._num_streams, self._is_between = self._num_streams + 1, True
            chunk = self._waiting or (self._raw.read(CHUNK_BYTES) if self._stream.needs_input else b"")
            self._waiting = b""
            if not chunk and self._stream.needs_input:
                if self._is_between and self._num_streams > 0:
                    return 0
                raise EOFError("the file ends before its content does")
            if self._is_between and self._num_streams > 0:
                chunk = chunk.lstrip(b"\0")  # between streams a file may be padded
                if not chunk:
                    continue
            self._is_between = False
            content = self._stream.decompress(chunk, len(buffer))
            if content:
                buffer[: len(content)] = content
                return len(content)


def _xz_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MOST_DICTIONARY_BYTES)


DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".bz2": bz2.BZ2File,
    ".xz": lambda raw: io.BufferedReader(_XzBytes(raw)),
    ".zst": _open_zstd,
    ".zstd": _open_zstd,
}
LOOKED_AT_BYTES = 8192
CHUNK_BYTES = 1 << 16
MOST_DICTIONARY_BYTES = 1 << 28  # four times what `xz -9` asks for
MOST_CONTENT_BYTES, MOST_TIMES = 1 << 30, 1000  # gzip itself ends at 1,032 times
DAMAGES = (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, pa.ArrowException)


def without_compression(name: str) -> PurePosixPath:
    """Return a file's name without the suffix of its compression."""
    path = PurePosixPath(name)
    return path.with_suffix("") if path.suffix.lower() in DECOMPRESSORS else path


def is_compressed(name: str) -> bool:
    """Tell whether a name ends with the suffix of a compression."""
    return PurePosixPath(name).suffix.lower() in DECOMPRESSORS


@final
class PlainBytes:
    """A text file's decompressed content, read forwards; a byte order mark at its beginning is left out."""

    def __init__(self, stream: Any, *, raw: Any, address: str) -> None:
        """Read from a stream over the bytes of `raw`."""
        self._stream, self._raw, self._address = stream, raw, address
        self.num_read = 0

    def read(self, num_bytes: int) -> bytes:
        """Return the next bytes, none at the end.

        Raises:
            DataError: The compressed file is damaged, or cannot be read.
        """
        try:
            content: bytes = self._stream.read(num_bytes)
        except DAMAGES as problem:
            where = f"after {self.num_read:,} bytes of content, by byte {self.num_raw_bytes():,} of the file"
            raise damaged(self._address, where, problem) from problem
        if self.num_read > MOST_CONTENT_BYTES and self.num_read > most_content_bytes(self.num_raw_bytes()):
            times = f"{self.num_read:,} bytes of content are in the first {self.num_raw_bytes():,}"
            raise DataError(f"{self._address}: {times}; unpack it yourself, or leave it out.")
        if self.num_read == 0:
            self.num_read = len(content)
            return content.removeprefix(codecs.BOM_UTF8)
        self.num_read += len(content)
        return content

    def num_raw_bytes(self) -> int:
        """Return how far into the file itself the reading is."""
        return int(self._raw.tell())


def most_content_bytes(num_bytes: int) -> int:
    """Return the most that a packed file of so many bytes is unpacked to: a few bytes could fill any disk."""
    return MOST_CONTENT_BYTES + MOST_TIMES * num_bytes


@contextmanager
def open_raw(file: FoundFile) -> Generator[Any, None, None]:
    """Open a file's own bytes.

    Raises:
        DataError: It cannot be read.
        EnvironmentProblem: It lies elsewhere and cannot be reached.
    """
    if not file.is_local:
        with worded(file.address):
            remote = cast("Any", fsspec.open(file.address, "rb")).open()
        with remote:
            yield remote
        return
    with ExitStack() as opened:
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
        yield PlainBytes(stream, raw=raw, address=file.address)


def is_text(file: FoundFile) -> bool:
    """Tell whether a file begins with UTF-8 text: no NUL byte in its first kilobytes, and nothing but whole characters.

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


def damaged(address: str, where: str, problem: Exception) -> DataError:
    """Return the refusal of a truncated or undecodable file."""
    why = " ".join(str(problem).split()) or type(problem).__name__
    return DataError(f"{address} is damaged {where}: {why.rstrip('.')}. Fetch it again, or leave it out.")
