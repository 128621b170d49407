"""Numbers of a file in memory without a copy, and a look whether the file still holds them.

The kernel ends a process with SIGBUS at a touch of a mapped file's cut-off part, and fills the last page with zeros.
"""

import mmap
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.errors import DataError

RESTORE: Final = "Restore it, or delete the folder and prepare it again."


@final
class MappedFile:
    """`items` [N] of a file from `offset_bytes` on, read when touched.

    Raises:
        DataError: The file cannot be read, or is too short.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], *, num_items: int, offset_bytes: int = 0) -> None:
        self._path = path
        self._num_bytes = offset_bytes + num_items * dtype.itemsize
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), self._num_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as problem:  # ValueError: the file is shorter than that
            raise DataError(f"{path} cannot be read: {problem}. {RESTORE}") from problem
        self.items: NDArray[Any] = np.frombuffer(self._map, dtype, count=num_items, offset=offset_bytes)

    def require_whole(self) -> None:
        """Look at the file's present size.

        Raises:
            DataError: It is shorter.
        """
        num_bytes = self._map.size()
        if num_bytes < self._num_bytes:
            raise DataError(
                f"{self._path} was cut off while it was read: it has {num_bytes:,} bytes instead of "
                f"{self._num_bytes:,}. {RESTORE}"
            )
