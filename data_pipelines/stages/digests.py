"""A set of 16-byte hashes in 16 bytes each: sorted runs in numpy, the latest in a Python set."""

import hashlib
import json
from typing import final

import numpy as np
from numpy.typing import NDArray

from data_pipelines.sources.base import Document

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
        """Start empty; so many of the latest are in a Python set, at about 110 bytes each."""
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
