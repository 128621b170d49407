"""Drop documents with the content of an earlier one, by hashes of 16 bytes."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from data_pipelines.sources.base import Document, Item, Skipped
from data_pipelines.stages.pieces import Pieces
from data_pipelines.stages.stage import PipelineJob, Scope, Stage
from lmtrain.accounting.options.ranges import require_count
from lmtrain.storage.durable import open_durably

DIGEST_BYTES = 16


def digest_of(document: Document) -> bytes:
    """Return a hash of a document's content: its text, or its messages with all their fields."""
    if document.messages is None:
        content = document.text.encode()
    else:
        content = json.dumps([*document.messages], sort_keys=True, ensure_ascii=True).encode()
    # sha256 is twice as fast as blake2b where a core has instructions for it
    return hashlib.sha256(content).digest()[:DIGEST_BYTES]


REASON = "exact duplicate"
_PLACE_BITS = 32


@final
class ExactDeduplication(Stage):
    """Keeps the first of all documents with the same content."""

    scope: Scope = "order"

    def __init__(self, *, num_tasks: int = 16) -> None:
        """On a cluster, decide in `num_tasks` tasks, each on its share of the hashes."""
        require_count("deduplicate.exact.num_tasks", num_tasks)
        self._num_tasks = num_tasks

    def __call__(self, documents: Iterable[Item], /) -> Iterator[Item]:
        """Yield each document the first time, and a drop every other time."""
        seen: set[bytes] = set()
        for item in documents:
            if isinstance(item, Document):
                digest = digest_of(item)
                yield Skipped(item.id, REASON) if digest in seen else item
                seen.add(digest)
            else:
                yield item

    def jobs(self, pieces: Pieces, folder: Path) -> tuple[PipelineJob, ...]:
        """Return two: hash every piece, then find the repetitions of each hash."""
        return (
            PipelineJob("exact_hashes", pieces.count, partial(_hash_piece, pieces, folder)),
            PipelineJob("exact_duplicates", self._num_tasks, partial(_find_again, pieces, folder, self._num_tasks)),
        )

    def removed(self, folder: Path, piece: int) -> Mapping[int, str]:
        """Return the places of a piece's repetitions."""
        places: dict[int, str] = {}
        for path in sorted(folder.glob("again_*.npy")):
            again = np.load(path, mmap_mode="r")
            start, end = again.searchsorted([piece << _PLACE_BITS, (piece + 1) << _PLACE_BITS])
            places |= dict.fromkeys((again[start:end] & ((1 << _PLACE_BITS) - 1)).tolist(), REASON)
        return places

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the deciding facts: the hash, not the tasks."""
        return {"stage": "exact", "digest_bytes": DIGEST_BYTES}


def _hash_piece(pieces: Pieces, folder: Path, piece: int) -> None:
    """Save the hashes and places of a piece's documents."""
    items = [(place, item) for place, item in enumerate(pieces.items(piece)) if isinstance(item, Document)]
    folder.mkdir(parents=True, exist_ok=True)
    digests = b"".join(digest_of(document) for _, document in items)
    words = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
    where = np.array([place for place, _ in items], dtype=np.uint64) + np.uint64(piece << _PLACE_BITS)
    _save(folder / f"hashes_{piece:06d}.npy", np.column_stack([words, where]))


def _find_again(pieces: Pieces, folder: Path, num_tasks: int, task: int) -> None:
    """Save the places of repetitions in this task's share of the hashes, in order."""
    every = (np.load(folder / f"hashes_{piece:06d}.npy") for piece in range(pieces.count))
    shares = [rows[rows[:, 0] % np.uint64(num_tasks) == task] for rows in every]
    rows = np.concatenate([np.empty((0, 3), dtype=np.uint64), *shares])
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    is_again = (rows[1:, :2] == rows[:-1, :2]).all(axis=1)
    _save(folder / f"again_{task:06d}.npy", np.sort(rows[1:, 2][is_again]).astype(np.int64))


def _save(path: Path, array: Any) -> None:
    with open_durably(path) as file:
        np.save(file, array)
