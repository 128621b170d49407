"""Files and names that survive a power cut: fsync, and a new file that is written aside before it is renamed.

No file is opened for writing through a symbolic link: a run's folder may come from a stranger.
"""

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from lmtrain.storage import foreign_json

ASIDE = ".tmp"
TAIL_BYTES: Final = 1 << 20


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


def open_inside(folder: Path, name: str, flags: int) -> int:
    """Open the regular file `name` (with slashes for subfolders, which are made) in a folder; return its descriptor.

    Neither the file nor a subfolder may be a symbolic link: each is opened below the descriptor of the one before it.

    Raises:
        OSError: One is a link (ELOOP or ENOTDIR), or the file is not a regular one.
    """
    *parents, last = Path(name).parts
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for parent in parents:
            with suppress(FileExistsError):
                os.mkdir(parent, dir_fd=at)
            inner = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        descriptor = os.open(last, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is a pipe, a socket or a device", str(folder / name))
    return descriptor


@contextmanager
def open_durably(path: Path, *, mode: int = 0o666) -> Generator[BinaryIO]:
    """Open a new file aside, to replace `path` at the end of the block; after an exception the old one stays.

    Raises:
        OSError: It could not be written; the old file is untouched, and no unfinished one is left.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}{ASIDE}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
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


def links_in(folder: Path, *, besides: tuple[str, ...] = ()) -> list[Path]:
    """Return the symbolic links in a folder and its subfolders, without those in the subfolders called `besides`."""
    found: list[Path] = []
    for path, folders, files in os.walk(folder):
        found += [Path(path, name) for name in (*folders, *files) if Path(path, name).is_symlink()]
        folders[:] = [name for name in folders if name not in besides]
    return found


def clear_asides(folder: Path) -> None:
    """Delete the unfinished files of killed writers, at any depth; the caller keeps living writers out."""
    for left in folder.rglob(f".*{ASIDE}"):
        left.unlink(missing_ok=True)


def drop_torn_end(descriptor: int) -> None:
    """Cut what a crash left at the end of a JSON-lines file: half a line, or lines of zero bytes."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - TAIL_BYTES)
    tail = os.pread(descriptor, size - start, start)
    whole = tail[: tail.rfind(b"\n") + 1]
    while whole and not _is_json(whole.splitlines()[-1]):
        whole = whole[: whole[:-1].rfind(b"\n") + 1]
    if len(whole) < len(tail):
        os.ftruncate(descriptor, start + len(whole))


def _is_json(line: bytes) -> bool:
    try:
        foreign_json.parse(line)
    except ValueError:
        return False
    return True
