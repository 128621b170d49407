"""A growing file with a running sha256 of its content."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from numpy.typing import NDArray

from lmtrain.data.manifest import Shard
from lmtrain.storage.hashed_folder import file_sha256

READ_BYTES = 1 << 22


@final
class HashedFile:
    """Append arrays; the digest is known at any moment without reading the file again."""

    def __init__(self, path: Path, *, kept_bytes: int = 0, sha256: str = "") -> None:
        """Begin a file, or go on behind the first `kept_bytes` of one, with the digest `sha256`.

        Raises:
            ValueError: The beginning has changed since it was written.
            FileNotFoundError: There is no such file to go on with.
        """
        self._digest = hashlib.sha256()
        self._file = path.open("r+b" if kept_bytes else "wb")
        if kept_bytes:
            self._go_on(path, kept_bytes, sha256)

    @property
    def sha256(self) -> str:
        """Return the digest of everything written so far, in hexadecimal."""
        return self._digest.hexdigest()

    def write(self, values: NDArray[Any]) -> None:
        """Append an array's bytes."""
        content = values.data.cast("B") if values.flags.c_contiguous and values.size else values.tobytes()
        self._file.write(content)
        self._digest.update(content)

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _go_on(self, path: Path, kept_bytes: int, sha256: str) -> None:
        self._file.truncate(kept_bytes)
        num_bytes = 0
        for content in _contents(self._file):
            num_bytes += len(content)
            self._digest.update(content)
        if num_bytes != kept_bytes or self.sha256 != sha256:
            self.close()
            raise ValueError(f"{path} has changed since it was written")


def changed_files(folder: Path, shard: Shard) -> Iterator[Path]:
    """Yield the files of a shard with other bytes than its digests'."""
    expected = {shard.file: shard.sha256, shard.index_file: shard.index_sha256, shard.mask_file: shard.mask_sha256}
    for name, sha256 in expected.items():
        if sha256 is not None and file_sha256(folder / name) != sha256:
            yield folder / name


def require_whole(folder: Path, shard: Shard) -> None:
    """Refuse a shard changed since it was written.

    Raises:
        ValueError: A file has changed.
        FileNotFoundError: A file is missing.
    """
    for path in changed_files(folder, shard):
        raise ValueError(f"{path} has changed since it was written")


def _contents(file: Any) -> Iterator[bytes]:
    while content := file.read(READ_BYTES):
        yield content
