"""Write one split's documents as shards; where a shard ends depends on the documents alone, not on how they arrive.

Writing can be committed at any moment, and a writer in another process continues from there.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.manifest import DTYPES, INDEX_DTYPE, MANIFEST_FILE, Manifest, Shard, SplitManifest
from lmtrain.storage.hashed_folder import file_sha256

READ_BYTES = 1 << 22
LossMask = NDArray[np.uint8]


@final
class HashedFile:
    """A file that arrays are appended to; its sha256 is known at any moment without reading it again."""

    def __init__(self, path: Path, *, kept_bytes: int = 0, sha256: str = "") -> None:
        """Begin a file, or continue after the first `kept_bytes` of one, which have the digest `sha256`.

        Raises:
            ValueError: The beginning has changed since it was written.
            FileNotFoundError: The file to continue is missing.
        """
        self._digest = hashlib.sha256()
        self._file = path.open("r+b" if kept_bytes else "wb")
        if kept_bytes:
            self._continue(path, kept_bytes, sha256)

    @property
    def sha256(self) -> str:
        """Return the digest of everything written so far, in hexadecimal."""
        return self._digest.hexdigest()

    def write(self, values: NDArray[Any]) -> None:
        """Append an array's bytes."""
        content = values.data.cast("B") if values.flags.c_contiguous and values.size else values.tobytes()
        self._file.write(content)
        self._digest.update(content)

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _continue(self, path: Path, kept_bytes: int, sha256: str) -> None:
        self._file.truncate(kept_bytes)
        num_bytes = 0
        while content := self._file.read(READ_BYTES):
            num_bytes += len(content)
            self._digest.update(content)
        if num_bytes != kept_bytes or self.sha256 != sha256:
            self.close()
            raise ValueError(f"{path} has changed since it was written")


def require_whole(folder: Path, shard: Shard) -> None:
    """Refuse a shard that changed since it was written.

    Raises:
        ValueError: A file has changed.
        FileNotFoundError: A file is missing.
    """
    for name, sha256 in shard.digests().items():
        if file_sha256(folder / name) != sha256:
            raise ValueError(f"{folder / name} has changed since it was written")


@dataclass(frozen=True)
class Written:
    """The durable part of a split: whole shards, and the beginning of the open one, if one is open."""

    closed: tuple[Shard, ...] = ()
    opened: Shard | None = None

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens, those of the open shard included."""
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Return the shards in order, the open one last."""
        return self.closed if self.opened is None else (*self.closed, self.opened)


@final
class ShardWriter:
    """Append documents; a shard is closed at the document with its `shard_tokens`th token."""

    def __init__(
        self, folder: Path, *, split: str, dtype: str, shard_tokens: int, written: Written | None = None
    ) -> None:
        """Write `<split>_00000.ds` and following into an existing folder, or continue after `written`.

        Raises:
            ValueError: The beginning of the open shard has changed since it was written.
        """
        assert shard_tokens > 0, shard_tokens
        self._folder = folder
        self._split = split
        self._dtype = DTYPES[dtype]
        self._shard_tokens = shard_tokens
        written = written or Written()
        self._shards = list(written.closed)
        self._open = _OpenShard(folder, written.opened, self._dtype) if written.opened else None

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens appended so far."""
        return sum(shard.num_tokens for shard in self._shards) + (self._open.num_tokens if self._open else 0)

    def append(self, ids: NDArray[Any], ends: NDArray[np.int64], loss_mask: LossMask | None = None) -> None:
        """Add documents: their ids back to back, where each ends, and which ids carry loss (None: all)."""
        start = first = 0
        while first < len(ends):
            shard = self._open = self._open or self._next_shard()
            wanted = start + self._shard_tokens - shard.num_tokens
            last = min(int(np.searchsorted(ends, wanted)), len(ends) - 1)
            stop = int(ends[last])
            mask = None if loss_mask is None else loss_mask[start:stop]
            shard.append(ids[start:stop].astype(self._dtype, copy=False), ends[first : last + 1] - start, mask)
            start, first = stop, last + 1
            if shard.num_tokens >= self._shard_tokens:
                self._close_shard()

    def commit(self) -> Written:
        """Wait until everything appended is on the disk, and return its description."""
        if self._open is not None:
            self._open.sync()
        return Written(closed=tuple(self._shards), opened=self._open.described() if self._open else None)

    def close(self, *, text_bytes: int) -> SplitManifest:
        """Finish the last shard and describe the split, whose documents have `text_bytes` bytes of UTF-8."""
        self._close_shard()
        return SplitManifest(
            num_documents=sum(shard.num_documents for shard in self._shards),
            num_tokens=sum(shard.num_tokens for shard in self._shards),
            text_bytes=text_bytes,
            shards=tuple(self._shards),
        )

    def abandon(self) -> None:
        """Close the files without a description."""
        if self._open is not None:
            self._open.abandon()

    def _next_shard(self) -> "_OpenShard":
        empty = Shard(f"{self._split}_{len(self._shards):05d}.ds", 0, 0, sha256="", index_sha256="")
        return _OpenShard(self._folder, empty, self._dtype)

    def _close_shard(self) -> None:
        if self._open is not None:
            self._open.sync()
            self._open.abandon()
            self._shards.append(self._open.described())
            self._open = None


@final
class _OpenShard:
    """A shard being filled: its ids, document ends and, from the first masked document on, its loss mask."""

    def __init__(self, folder: Path, shard: Shard, dtype: np.dtype[Any]) -> None:
        self._folder = folder
        self._begun = shard
        self.num_tokens = shard.num_tokens
        self._num_documents = shard.num_documents
        num_index_bytes = shard.num_documents * INDEX_DTYPE.itemsize
        self._ids = HashedFile(folder / shard.file, kept_bytes=shard.num_tokens * dtype.itemsize, sha256=shard.sha256)
        self._index = HashedFile(folder / shard.index_file, kept_bytes=num_index_bytes, sha256=shard.index_sha256)
        self._mask = None
        if shard.mask_sha256 is not None:
            path = folder / shard.mask_file
            self._mask = HashedFile(path, kept_bytes=shard.num_tokens, sha256=shard.mask_sha256)

    def append(self, ids: NDArray[Any], ends: NDArray[np.int64], loss_mask: LossMask | None) -> None:
        if loss_mask is not None or self._mask is not None:
            self._append_mask(np.ones(len(ids), np.uint8) if loss_mask is None else loss_mask)
        self._ids.write(ids)
        self._index.write((ends + self.num_tokens).astype(INDEX_DTYPE))
        self.num_tokens += len(ids)
        self._num_documents += len(ends)

    def described(self) -> Shard:
        return Shard(
            file=self._begun.file,
            num_tokens=self.num_tokens,
            num_documents=self._num_documents,
            sha256=self._ids.sha256,
            index_sha256=self._index.sha256,
            mask_sha256=self._mask.sha256 if self._mask else None,
        )

    def sync(self) -> None:
        for file in self._files():
            file.sync()

    def abandon(self) -> None:
        for file in self._files():
            file.close()

    def _append_mask(self, loss_mask: LossMask) -> None:
        if self._mask is None:
            self._mask = HashedFile(self._folder / self._begun.mask_file)
            self._mask.write(np.ones(self.num_tokens, np.uint8))  # earlier documents had no mask: all carry loss
        self._mask.write(np.ascontiguousarray(loss_mask, dtype=np.uint8))

    def _files(self) -> Iterator[HashedFile]:
        yield from (self._ids, self._index)
        if self._mask is not None:
            yield self._mask


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `dataset.json`, the same bytes for the same manifest."""
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest.to_json(), indent=1) + "\n")
