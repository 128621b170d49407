"""Files and names safe from a power cut: fsync, and writing aside before a rename."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

ASIDE = ".tmp"


def fsync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_all(folder: Path) -> None:
    """Wait until a folder and all below it are on the disk."""
    for path in [*folder.rglob("*"), folder]:
        fsync(path)


def rename_durably(aside: Path, final: Path) -> None:
    """Give a file or folder its final name, in the same folder; a file of that name is replaced."""
    aside.replace(final)
    fsync(final.parent)


@contextmanager
def open_durably(path: Path, *, mode: int = 0o666) -> Generator[BinaryIO]:
    """Open a new file aside, to replace `path` at the end of the block; after an exception the old one stays.

    Raises:
        OSError: It could not be written; the old file is untouched, and nothing is left beside it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}{ASIDE}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        rename_durably(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_durably(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace a file by content, whole or not at all; see open_durably."""
    with open_durably(path, mode=mode) as file:
        file.write(content)


def clear_asides(folder: Path) -> None:
    """Delete the unfinished files of killed writers, at any depth; the caller keeps living writers out."""
    for left in folder.rglob(f".*{ASIDE}"):
        left.unlink(missing_ok=True)
