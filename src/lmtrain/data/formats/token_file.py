"""Another program's file of token ids, as found by its reader: nothing is copied, ids stay in place."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.layout import DTYPES, Ids
from lmtrain.errors import DataError


@dataclass(frozen=True)
class TokenFile:
    """`num_tokens` little-endian ids of type `dtype`, `offset_bytes` into a file.

    `read_ends` gives the offset after each document's last id, where the format knows it; None: an end-of-text id ends
    a document.
    """

    path: Path
    dtype: str
    offset_bytes: int
    num_tokens: int
    read_ends: Callable[[], NDArray[np.int64]] | None = None

    def ids(self) -> Ids:
        """Return the ids, mapped from the disk."""
        return np.memmap(
            self.path, dtype=DTYPES[self.dtype], mode="r", offset=self.offset_bytes, shape=(self.num_tokens,)
        ).view(np.ndarray)


def headerless(path: Path, *, dtype: str, what: str) -> TokenFile:
    """Return a file of nothing but ids.

    Raises:
        DataError: It is missing, empty, of an odd size, or has the header of another format.
    """
    num_bytes = size_of(path)
    itemsize = DTYPES[dtype].itemsize
    if num_bytes % itemsize:
        raise DataError(f"{path} has {num_bytes:,} bytes, no whole number of {dtype} ids: not {what}, or cut off.")
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise DataError(f"{path} is an array saved by numpy, not {what}: write its ids with tofile().")
    return TokenFile(path, dtype, offset_bytes=0, num_tokens=num_bytes // itemsize)


def size_of(path: Path) -> int:
    """Return a file's size in bytes.

    Raises:
        DataError: It is missing or empty.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist (looked from {Path.cwd()}).")
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise DataError(f"{path} is empty.")
    return num_bytes
