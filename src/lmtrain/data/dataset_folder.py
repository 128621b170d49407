"""Data set folders: built whole or not at all, checked against their digests, copied to a node's own disk.

Whole files are remembered by size and time of change, so that later starts read only what has changed.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from lmtrain.accounting.quantities import format_count
from lmtrain.data.manifest import MANIFEST_FILE, TOKENIZER_FOLDER, Manifest
from lmtrain.data.shards import REBUILD, Dataset, open_dataset
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import clear_asides, fsync_all, open_durably, rename_durably, write_durably
from lmtrain.storage.hashed_folder import file_sha256

COPIED_FILE = "copied.json"
CHUNK_BYTES = 1 << 22
FULL = (errno.ENOSPC, errno.EDQUOT)
_FIXES = {
    errno.ENOSPC: "the disk is full: free some space, or set data.folder.root to another disk",
    errno.EDQUOT: "the quota is used up: free some space, or set data.folder.root to another disk",
    errno.EFBIG: "file too large: raise the limit (ulimit -f), or lower data.folder.shard_tokens",
    errno.EROFS: "it is mounted read-only: set data.folder.root to a folder that can be written",
    errno.EACCES: "permission denied: set data.folder.root to a folder that you may write",
    errno.EPERM: "permission denied: set data.folder.root to a folder that you may write",
    errno.ENOTDIR: "a file is in the way: set data.folder.root to a folder",
    errno.EEXIST: "a file is in the way: set data.folder.root to a folder",
}


def build_folder(
    final: Path, build: Callable[[Path], object], *, tell: Callable[[str], object], is_resumable: bool = False
) -> bool:
    """Let `build` fill a folder that then appears as `final`, once for any number of processes; False: it existed.

    However the build ends, the final name never holds a partial folder. A resumable build finds the work of an earlier
    one in its folder; any other starts with an empty one. `tell` prints a line before a wait for another process.

    Raises:
        ConfigurationError: `final` is an address of a store, as s3://...
        EnvironmentProblem: The folder cannot be written.
    """
    if final.parts[0].endswith(":") and os.sep == "/":  # s3://bucket/x, as a path
        raise ConfigurationError(f"{final}: data must be written to a folder of this machine; mount the store there.")
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
        kept = "Finished work is kept: the same command continues from it" if is_resumable else "Nothing was lost"
        raise EnvironmentProblem(f"{final} cannot be written: {_FIXES[error.errno]}. {kept}.") from error


@contextmanager
def _lock(path: Path, *, tell: Callable[[], object] = lambda: None) -> Generator[None, None, None]:
    """Let one process at a time through; `tell` is called before a wait."""
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
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)


def require_whole(dataset: Dataset) -> None:
    """Check all files that changed since they were last found whole.

    Raises:
        DataError: A file is missing, or its bytes are not those that were written.
    """
    record = dataset.folder.with_name(f".{dataset.folder.name}.checked.json")
    known, found = _read_record(record), dict[str, Any]()
    for shard in dataset.manifest.shards:
        for name, sha256 in shard.digests().items():
            path = dataset.folder / name
            try:
                facts = path.stat()
                stamp = [sha256, facts.st_size, facts.st_mtime_ns, facts.st_ino]
                if known.get(str(path)) != stamp and file_sha256(path) != sha256:
                    raise DataError(f"{path} is damaged: its sha256 differs from {MANIFEST_FILE}. {REBUILD}")
            except OSError as problem:
                raise DataError(f"{path} cannot be read: {problem.strerror}. {REBUILD}") from problem
            found[str(path)] = stamp
    if found != known:
        with contextlib.suppress(OSError):  # without the record, the next start reads all files again
            write_durably(record, json.dumps(found, indent=1).encode())


@final
class BackgroundCheck:
    """Checks data sets on a thread while training begins; `require_whole` waits for the result."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self._datasets = datasets
        self._problem: DataError | None = None
        self._thread = threading.Thread(target=self._run, name="data check", daemon=True)
        self._thread.start()

    def require_whole(self) -> None:
        """Wait for the end of the check.

        Raises:
            DataError: A file is missing, or its bytes are not those that were written.
        """
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            for dataset in self._datasets:
                require_whole(dataset)
        except DataError as problem:
            self._problem = problem


def cached_folder(folder: str | Path, cache: str | None) -> Path:
    """Return the folder to read: this node's copy below `cache`, or `folder` itself where `cache` is None or full.

    A file is copied aside, compared with the manifest's sha256 and renamed; `dataset.json` comes last, so a copy
    without it is incomplete, and the next process completes it.

    Raises:
        DataError: The folder cannot be used, or a file in it is damaged.
        EnvironmentProblem: The copy cannot be written, for another reason than a full disk.
    """
    folder = Path(folder)
    if cache is None:
        return folder
    manifest = open_dataset(folder).manifest
    copy = Path(cache) / f"{manifest.name}-{manifest.fingerprint[:16]}"
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with _lock(copy.with_name(f".{copy.name}.lock")):
            _complete_copy(folder, copy, manifest)
    except OSError as problem:
        if problem.errno not in FULL:
            msg = f"data.cache={cache} cannot be written: {problem.strerror}. Name another folder, or null for no copy."
            raise EnvironmentProblem(msg) from problem
        notify(f"data.cache={cache} is full ({problem.strerror}): this node reads {folder} itself.")
        return folder
    return copy


def notify(line: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _complete_copy(folder: Path, copy: Path, manifest: Manifest) -> None:
    """Copy missing, changed and damaged files."""
    copy.mkdir(exist_ok=True)
    clear_asides(copy)
    known = _read_record(copy / COPIED_FILE)
    wanted = dict(_files(folder, manifest))
    missing = [name for name, sha256 in wanted.items() if not _is_whole(copy / name, sha256, known.get(name))]
    if missing or not (copy / MANIFEST_FILE).is_file():
        num_bytes = sum((folder / name).stat().st_size for name in missing)
        if num_bytes > (free := shutil.disk_usage(copy).free):
            raise OSError(errno.ENOSPC, f"{num_bytes / 1e9:.2f} GB to copy, {free / 1e9:.2f} GB free")
        if missing:
            count = f"{len(missing)} of {format_count(len(wanted), 'file')} ({num_bytes / 1e9:.2f} GB)"
            notify(f"Copying {count} of {folder} to {copy}.")
        (copy / MANIFEST_FILE).unlink(missing_ok=True)
        for name in missing:
            _copy(folder / name, copy / name, wanted[name])
    stamps = {name: _size_and_time(copy / name) for name in wanted}
    if stamps != known:
        write_durably(copy / COPIED_FILE, json.dumps(stamps, indent=1).encode())
    if not (copy / MANIFEST_FILE).is_file():
        write_durably(copy / MANIFEST_FILE, (folder / MANIFEST_FILE).read_bytes())


def _files(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str | None]]:
    """Yield each file of a data set with its sha256 in the manifest; None for a tokenizer's."""
    for shard in manifest.shards:
        for name, sha256 in shard.digests().items():
            if not Path(name).is_absolute():  # another program's tokens are read in place
                yield name, sha256
    tokenizer = folder / TOKENIZER_FOLDER
    yield from ((str(path.relative_to(folder)), None) for path in sorted(tokenizer.rglob("*")) if path.is_file())


def _is_whole(file: Path, sha256: str | None, stamp: list[int] | None) -> bool:
    """Return whether a copied file is unchanged; one with another size or time is read again."""
    if not file.is_file():
        return False
    if stamp is not None and _size_and_time(file) == stamp:
        return True
    return sha256 is not None and file_sha256(file) == sha256


def _copy(source: Path, target: Path, sha256: str | None) -> None:
    """Copy a file aside, compare it, and give it its name.

    Raises:
        DataError: The source's sha256 differs from the manifest's.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as reading, open_durably(target) as writing:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            writing.write(chunk)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise DataError(f"{source} is damaged: its sha256 differs from {MANIFEST_FILE}. Prepare the data again.")


def _read_record(path: Path) -> dict[str, Any]:
    try:
        return foreign_json.read(path)
    except (OSError, ValueError):
        return {}


def _size_and_time(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]
