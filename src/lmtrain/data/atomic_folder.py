"""Data set folders are whole or absent: built once, aside, under a lock, then renamed."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage.durable import fsync_all, rename_durably

_FIXES = {
    errno.ENOSPC: "the disk is full: free some space, or set data.folder.root to another disk",
    errno.EDQUOT: "the quota is used up: free some space, or set data.folder.root to another disk",
    errno.EFBIG: "a file may not grow so large here: raise the limit (ulimit -f), or lower data.folder.shard_tokens",
    errno.EROFS: "it is mounted read-only: set data.folder.root to a folder that can be written",
    errno.EACCES: "permission denied: set data.folder.root to a folder that you may write",
    errno.EPERM: "permission denied: set data.folder.root to a folder that you may write",
    errno.ENOTDIR: "a file is in the way: set data.folder.root to a folder",
    errno.EEXIST: "a file is in the way: set data.folder.root to a folder",
}


def build_folder(
    final: Path, build: Callable[[Path], object], *, tell: Callable[[str], object], is_resumable: bool = False
) -> bool:
    """Let `build` fill a folder to appear as `final`, once for any number of processes; False: it was there.

    However the build ends, no half folder stays under the final name. A resumable build finds an earlier one's work in
    its folder, however that ended; any other starts with an empty one. `tell` is called with a line before a wait for
    another process.

    Raises:
        ConfigurationError: `final` is an address of a store, as s3://...
        EnvironmentProblem: The folder cannot be written.
    """
    if final.parts[0].endswith(":") and os.sep == "/":  # s3://bucket/x, as a path
        raise ConfigurationError(f"{final} is an address; data is written to folders of this machine: mount it there.")
    lock = final.with_name(f".{final.name}.lock")
    if final.is_dir() and not lock.exists():
        return False
    aside = aside_of(final)
    with _storage_problems(final, is_resumable=is_resumable):
        final.parent.mkdir(parents=True, exist_ok=True)
        with _lock(lock, tell=lambda: tell(f"{final}: waiting for another process")):
            if final.is_dir():
                return False
            if not is_resumable:
                shutil.rmtree(aside, ignore_errors=True)
            try:
                aside.mkdir(exist_ok=is_resumable)
                build(aside)
                fsync_all(aside)
                rename_durably(aside, final)
            except BaseException:
                if not is_resumable:
                    shutil.rmtree(aside, ignore_errors=True)
                raise
            return True


def aside_of(final: Path) -> Path:
    """Return the hidden folder of a build."""
    return final.with_name(f".{final.name}.building")


@contextmanager
def _storage_problems(final: Path, *, is_resumable: bool) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FIXES:
            raise
        kept = "Finished work is kept: the same command goes on from it" if is_resumable else "Nothing was lost"
        raise EnvironmentProblem(f"{final} cannot be written: {_FIXES[error.errno]}. {kept}.") from error


@contextmanager
def _lock(path: Path, *, tell: Callable[[], object]) -> Generator[None, None, None]:
    descriptor = _locked_descriptor(path, tell=tell)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked_descriptor(path: Path, *, tell: Callable[[], object]) -> int:
    has_notified = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not has_notified:
                tell()
                has_notified = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The holder before us removed the file: our locked file may differ from the next process's.
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still names an open file; one look, as the file may be removed between two."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
