"""Data set folders: built whole or not at all, and checked against their digests.

Whole files are remembered by size and time of change, so that later starts read only what has changed.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from lmtrain.data.manifest import MANIFEST_FILE
from lmtrain.data.shards import REBUILD, Dataset
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import fsync_all, rename_durably, write_durably
from lmtrain.storage.hashed_folder import file_sha256

_FIXES = {
    errno.ENOSPC: "the disk is full: free some space, or set data.folder.root to another disk",
    errno.EDQUOT: "the quota is used up: free some space, or set data.folder.root to another disk",
    errno.EFBIG: "file too large: raise the limit (ulimit -f), or lower data.folder.shard_tokens",
    errno.EROFS: "read-only: set data.folder.root to a folder that can be written",
    errno.EACCES: "permission denied: set data.folder.root to a folder that you may write",
    errno.EPERM: "permission denied: set data.folder.root to a folder that you may write",
    errno.ENOTDIR: "a file is in the way: set data.folder.root to a folder",
    errno.EEXIST: "a file is in the way: set data.folder.root to a folder",
}


def build_folder(final: Path, build: Callable[[Path], object], *, is_resumable: bool = False) -> bool:
    """Let `build` fill a folder that then appears as `final`, once for any number of processes; False: it existed.

    However the build ends, the final name never holds a partial folder. A resumable build finds the work of an earlier
    one in its folder; any other starts with an empty one. A line is printed before a wait for another process.

    Raises:
        ConfigurationError: `final` is an address of a store, as s3://...
        EnvironmentProblem: The folder cannot be written.
    """
    if final.parts[0].endswith(":") and os.sep == "/":  # s3://bucket/x, as a path
        raise ConfigurationError(f"{final}: data must be written to a folder of this machine; mount the store there.")
    lock = final.with_name(f".{final.name}.lock")
    if final.is_dir() and not lock.exists():
        return False
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _lock(lock, waits=f"{final}: waiting for another process"):
            if final.is_dir():
                return False
            _build(final, build, is_resumable=is_resumable)
    except OSError as error:
        if error.errno not in _FIXES:
            raise
        kept = "Finished work is kept: the same command continues from it" if is_resumable else "Nothing was lost"
        raise EnvironmentProblem(f"{final} cannot be written: {_FIXES[error.errno]}. {kept}.") from error
    return True


def _build(final: Path, build: Callable[[Path], object], *, is_resumable: bool) -> None:
    aside = final.with_name(f".{final.name}.building")
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


@contextmanager
def _lock(path: Path, *, waits: str = "") -> Generator[None, None, None]:
    """Let one process at a time through; the line `waits` is printed before a wait."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waits:
            notify(waits)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    # The holder before us may have removed the file: our locked file then differs from the next process's.
    if not _is_same_file(path, descriptor):
        os.close(descriptor)
        with _lock(path):
            yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def require_whole(dataset: Dataset) -> None:
    """Check all files but the tokenizer's that changed since they were last found whole."""
    folder = dataset.folder
    record = folder.with_name(f".{folder.name}.checked.json")
    try:
        known: dict[str, Any] = foreign_json.read(record)
    except (OSError, ValueError):
        known = {}
    found: dict[str, Any] = {}
    digests = {name: sha256 for shard in dataset.manifest.shards for name, sha256 in shard.digests().items()}
    for name, sha256 in digests.items():
        path = folder / name
        try:
            if not path.is_file() or (known.get(str(path)) != _stamp(path, sha256) and file_sha256(path) != sha256):
                raise DataError(f"{path} is damaged: its sha256 differs from {MANIFEST_FILE}. {REBUILD}")
            found[str(path)] = _stamp(path, sha256)
        except PermissionError as problem:
            raise DataError(f"{path} cannot be read: {problem.strerror}. {REBUILD}") from problem
    if found != known:
        with contextlib.suppress(OSError):  # without the record, the next start reads all files again
            write_durably(record, json.dumps(found, indent=1).encode())


def _stamp(path: Path, sha256: str) -> list[Any]:
    status = path.stat()
    return [sha256, status.st_size, status.st_mtime_ns, status.st_ino]


@final
class BackgroundCheck:
    """Checks data sets on a thread while training begins; `require_whole` waits for the result."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self._datasets = datasets
        self._problem: DataError | None = None
        self._thread = threading.Thread(target=self._run, name="data check", daemon=True)
        self._thread.start()

    def require_whole(self) -> None:
        """Wait for the end of the check."""
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            for dataset in self._datasets:
                require_whole(dataset)
        except DataError as problem:
            self._problem = problem


def notify(line: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
