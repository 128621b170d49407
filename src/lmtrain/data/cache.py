"""A copy of a prepared folder on this node's own disk: made once, however many ranks ask, and checked before use.

A file is copied aside, its sha256 compared with the manifest's, synced and renamed; `dataset.json` comes last, so a
copy without it is not whole, and the next process completes it. `copied.json` remembers each file's size and time of
change: a file with others is read and compared again, and copied again if its sha256 differs.
"""

import errno
import fcntl
import hashlib
import json
import shutil
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from lmtrain.accounting.quantities import format_count
from lmtrain.data.manifest import Manifest
from lmtrain.data.shards import MANIFEST_FILE, TOKENIZER_FOLDER, open_dataset
from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import clear_asides, open_durably, write_durably
from lmtrain.storage.hashed_folder import file_sha256

COPIED_FILE = "copied.json"
CHUNK_BYTES = 1 << 22
FULL = (errno.ENOSPC, errno.EDQUOT)


def cached_folder(folder: str | Path, cache: str | None) -> Path:
    """Return the folder to read: this node's copy below `cache`, or `folder` itself where `cache` is None or full.

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
            _make_whole(folder, copy, manifest)
    except OSError as problem:
        if problem.errno not in FULL:
            msg = f"data.cache={cache} cannot be written: {problem.strerror}. Name another folder, or null for no copy."
            raise EnvironmentProblem(msg) from problem
        _notify(f"data.cache={cache} is full ({problem.strerror}): this node reads {folder} itself.")
        return folder
    return copy


def _make_whole(folder: Path, copy: Path, manifest: Manifest) -> None:
    """Copy missing, changed and damaged files."""
    copy.mkdir(exist_ok=True)
    clear_asides(copy)
    known = _read_known(copy)
    wanted = dict(_files(folder, manifest))
    missing = [name for name, sha256 in wanted.items() if not _is_whole(copy / name, sha256, known.get(name))]
    if missing or not (copy / MANIFEST_FILE).is_file():
        num_bytes = sum((folder / name).stat().st_size for name in missing)
        _require_space(copy, num_bytes)
        if missing:
            _notify(f"Copying {len(missing)} of {format_count(len(wanted), 'file')} ({num_bytes / 1e9:.2f} GB) of {folder} to {copy}.")
        (copy / MANIFEST_FILE).unlink(missing_ok=True)
        for name in missing:
            _copy(folder / name, copy / name, wanted[name])
    stamps = {name: _stamp(copy / name) for name in wanted}
    if stamps != known:
        write_durably(copy / COPIED_FILE, json.dumps(stamps, indent=1).encode())
    if not (copy / MANIFEST_FILE).is_file():
        write_durably(copy / MANIFEST_FILE, (folder / MANIFEST_FILE).read_bytes())


def _files(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str | None]]:
    """Yield each file of a data set with its sha256 in the manifest; None for a tokenizer's."""
    for split in manifest.splits.values():
        for shard in split.shards:
            if not Path(shard.file).is_absolute():  # else another program's tokens, read where they lie
                yield shard.file, shard.sha256
            yield shard.index_file, shard.index_sha256
            if shard.mask_sha256 is not None:
                yield shard.mask_file, shard.mask_sha256
    tokenizer = folder / TOKENIZER_FOLDER
    yield from ((str(path.relative_to(folder)), None) for path in sorted(tokenizer.rglob("*")) if path.is_file())


def _is_whole(file: Path, sha256: str | None, stamp: list[int] | None) -> bool:
    """Return whether a copied file is unchanged; a file changed since is read again."""
    if not file.is_file():
        return False
    if stamp is not None and _stamp(file) == stamp:
        return True
    if sha256 is None:
        return False
    return file_sha256(file) == sha256


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
            msg = f"{source} is damaged: its sha256 is not the one in {MANIFEST_FILE}. Prepare the data again."
            raise DataError(msg)


def _require_space(copy: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(copy).free
    if free < num_bytes:
        shortage = f"{num_bytes / 1e9:.2f} GB to copy, {free / 1e9:.2f} GB free"
        raise OSError(errno.ENOSPC, shortage)


def _read_known(copy: Path) -> dict[str, list[int]]:
    try:
        return foreign_json.read(copy / COPIED_FILE)
    except (OSError, ValueError):
        return {}


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def _notify(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def _lock(path: Path) -> Generator[None, None, None]:
    """Let one process of this node at a time through; the lock goes with the process, however it ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
