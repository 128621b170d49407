"""A set of 16-byte hashes in 16 bytes each: sorted runs in numpy, the latest in a Python set."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.stage import Item, Pieces, PipelineJob, Scope
from lmtrain.errors import ConfigurationError
from lmtrain.storage.durable import open_durably

DIGEST_BYTES = 16
NUM_RECENT = 1 << 17
Words = NDArray[np.uint64]


def digest_of(document: Document) -> bytes:
    """Return a hash of a document's content: its text, or its messages with all their fields."""
    if document.known_digest is not None:
        return document.known_digest
    if document.messages is None:
        content = document.text.encode()
    else:
        content = json.dumps([*document.messages], sort_keys=True, ensure_ascii=True).encode()
    # sha256 is twice as fast as blake2b where a core has instructions for it
    digest = hashlib.sha256(content).digest()[:DIGEST_BYTES]
    object.__setattr__(document, "known_digest", digest)  # a document is frozen for everyone else
    return digest


@final
class Digests:
    """A growing set; two runs of about equal length merge, so that there are few."""

    def __init__(self, *, num_recent: int = NUM_RECENT) -> None:
        """Start empty; the latest `num_recent` are in a Python set, at about 110 bytes each."""
        self._num_recent = num_recent
        self._recent: set[bytes] = set()
        self._runs: list[tuple[Words, Words]] = []

    def add(self, digest: bytes) -> bool:
        """Add a digest and return whether it is new."""
        if digest in self._recent or self._in_runs(digest):
            return False
        self._recent.add(digest)
        if len(self._recent) >= self._num_recent:
            self._retire()
        return True

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the runs."""
        return sum(first.nbytes + second.nbytes for first, second in self._runs)

    def _in_runs(self, digest: bytes) -> bool:
        first, second = np.frombuffer(digest, dtype=np.uint64)
        for firsts, seconds in self._runs:
            place = int(firsts.searchsorted(first))
            while place < len(firsts) and firsts[place] == first:
                if seconds[place] == second:
                    return True
                place += 1
        return False

    def _retire(self) -> None:
        words = np.frombuffer(b"".join(self._recent), dtype=np.uint64).reshape(-1, 2)
        self._recent.clear()
        self._runs.append(_in_order(words[:, 0], words[:, 1]))
        while len(self._runs) > 1 and 2 * len(self._runs[-1][0]) > len(self._runs[-2][0]):
            self._merge_last_two()

    def _merge_last_two(self) -> None:
        later, earlier = list(self._runs.pop()), list(self._runs.pop())
        firsts = np.concatenate([earlier.pop(0), later.pop(0)])  # popped, so that each array goes once it is copied
        seconds = np.concatenate([earlier.pop(), later.pop()])
        order = np.argsort(firsts, kind="stable")
        firsts = firsts[order]
        self._runs.append((firsts, seconds[order]))


def _in_order(firsts: Words, seconds: Words) -> tuple[Words, Words]:
    order = np.argsort(firsts, kind="stable")
    return firsts[order], seconds[order]


REASON = "exact duplicate"
_PLACE_BITS = 32


@final
class ExactDeduplication:
    """Keeps the first of all documents with the same content."""

    scope: Scope = "order"

    def __init__(self, *, num_tasks: int = 16) -> None:
        """On a cluster, decide in `num_tasks` tasks, each on its share of the hashes."""
        if num_tasks < 1:
            raise ConfigurationError(f"deduplicate.exact.num_tasks={num_tasks} must be positive; nearest valid: 1.")
        self._num_tasks = num_tasks

    def __call__(self, documents: Iterable[Item], /) -> Iterator[Item]:
        """Yield each document the first time, and a drop every other time."""
        seen = Digests()
        for item in documents:
            is_again = isinstance(item, Document) and not seen.add(digest_of(item))
            yield Skipped(item.id, REASON) if is_again else item

    def jobs(self, pieces: Pieces, folder: Path) -> tuple[PipelineJob, ...]:
        """Return two: hash every piece, then find the repetitions of each hash."""
        shares = PipelineJob("exact_duplicates", self._num_tasks, _FindAgain(folder, pieces.count, self._num_tasks))
        return PipelineJob("exact_hashes", pieces.count, _HashPiece(pieces, folder)), shares

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


@dataclass(frozen=True)
class _HashPiece:
    pieces: Pieces
    folder: Path

    def __call__(self, piece: int) -> None:
        """Save the hashes and places of a piece's documents."""
        places: list[int] = []
        digests: list[bytes] = []
        for place, item in enumerate(self.pieces.items(piece)):
            if isinstance(item, Document):
                places.append(place)
                digests.append(digest_of(item))
        self.folder.mkdir(parents=True, exist_ok=True)
        words = np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)
        where = np.array(places, dtype=np.uint64) + np.uint64(piece << _PLACE_BITS)
        _save(self.folder / f"hashes_{piece:06d}.npy", np.column_stack([words, where]))


@dataclass(frozen=True)
class _FindAgain:
    folder: Path
    num_pieces: int
    num_tasks: int

    def __call__(self, task: int) -> None:
        """Save the places of repetitions in this task's share of the hashes, in order."""
        shares = [self._share(np.load(self.folder / f"hashes_{n:06d}.npy"), task) for n in range(self.num_pieces)]
        rows = np.concatenate([np.empty((0, 3), dtype=np.uint64), *shares])
        rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
        is_again = (rows[1:, :2] == rows[:-1, :2]).all(axis=1)
        _save(self.folder / f"again_{task:06d}.npy", np.sort(rows[1:, 2][is_again]).astype(np.int64))

    def _share(self, rows: Any, task: int) -> Any:
        return rows[rows[:, 0] % np.uint64(self.num_tasks) == task]


def _save(path: Path, array: Any) -> None:
    with open_durably(path) as file:
        np.save(file, array)
