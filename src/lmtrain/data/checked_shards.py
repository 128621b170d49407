"""Prepared data held against the digests of its manifest: each file once, and again where it has changed since.

Whole files are remembered by size, time of change and inode, in a hidden file beside the folder; without this file,
every start reads all files again.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from lmtrain.data.layout import MANIFEST_FILE
from lmtrain.data.manifest import Manifest
from lmtrain.data.shards import REBUILD, Dataset
from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import write_durably
from lmtrain.storage.hashed_folder import file_sha256

Stamp = list[str | int]  # digest, and its file's fields


def require_whole(dataset: Dataset) -> None:
    """Read all files changed since they were last found whole.

    Raises:
        DataError: A file is gone, or its bytes are not those that were written.
    """
    record = dataset.folder.with_name(f".{dataset.folder.name}.checked.json")
    known, found = _read(record), dict[str, Stamp]()
    for path, sha256 in _digests(dataset.folder, dataset.manifest):
        try:
            stamp = _stamp(path, sha256)
            if known.get(str(path)) != stamp and file_sha256(path) != sha256:
                raise DataError(f"{path} is damaged: its sha256 is not the one in {MANIFEST_FILE}. {REBUILD}")
        except OSError as problem:
            raise DataError(f"{path} cannot be read: {problem.strerror}. {REBUILD}") from problem
        found[str(path)] = stamp
    if found != known:
        _write(record, found)


@final
class BackgroundCheck:
    """Checks data sets on a thread while training begins; `require_whole` waits for its findings."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self._datasets = datasets
        self._problem: DataError | None = None
        self._thread = threading.Thread(target=self._run, name="data check", daemon=True)
        self._thread.start()

    def require_whole(self) -> None:
        """Wait for the end of the check.

        Raises:
            DataError: A file is gone, or its bytes are not those that were written.
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


def _digests(folder: Path, manifest: Manifest) -> Iterator[tuple[Path, str]]:
    for split in manifest.splits.values():
        for shard in split.shards:
            yield folder / shard.file, shard.sha256
            yield folder / shard.index_file, shard.index_sha256
            if shard.mask_sha256 is not None:
                yield folder / shard.mask_file, shard.mask_sha256


def _stamp(path: Path, sha256: str) -> Stamp:
    facts = path.stat()
    return [sha256, facts.st_size, facts.st_mtime_ns, facts.st_ino]


def _read(record: Path) -> dict[str, Stamp]:
    try:
        return foreign_json.read(record)
    except (OSError, ValueError):
        return {}


def _write(record: Path, found: dict[str, Stamp]) -> None:
    with contextlib.suppress(OSError):
        write_durably(record, json.dumps(found, indent=1).encode())
