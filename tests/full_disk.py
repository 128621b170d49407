"""A disk that refuses what is written to it, for a moment."""

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager
from errno import ENOSPC
from unittest import mock


@contextmanager
def full_disk(*, room_bytes: int = 0, number: int = ENOSPC) -> Generator[None]:
    """Let os.write take `room_bytes`, half a line perhaps, and then fail with an error number."""
    write, room = os.write, [room_bytes]

    def refuse(descriptor: int, content: bytes) -> int:
        part, room[0] = content[: room[0]], 0
        if not part:
            raise OSError(number, os.strerror(number))
        return write(descriptor, part)

    with mock.patch.object(os, "write", refuse):
        yield


@contextmanager
def files_of_at_most(num_bytes: int) -> Generator[None]:
    """Let no file of this process grow beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
