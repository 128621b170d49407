"""Write one split's documents as shards; where a shard ends depends on the documents alone, not on how they arrive."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.manifest import DTYPES, INDEX_DTYPE, MANIFEST_FILE, TOKENIZER_FOLDER, Manifest, Shard, SplitManifest
from lmtrain.tokenizers.base import Tokenizer

LossMask = NDArray[np.uint8]


@final
class HashedFile:
    """A new file that arrays are appended to; its sha256 is known at any moment without reading it again."""

    def __init__(self, path: Path) -> None:
        """Begin a file."""
        self._digest = hashlib.sha256()
        self._file = path.open("wb")

    @property
    def sha256(self) -> str:
        """Return the digest of everything written so far, in hexadecimal."""
        return self._digest.hexdigest()

    def write(self, values: NDArray[Any]) -> None:
        """Append an array's bytes."""
        content = values.data.cast("B") if values.flags.c_contiguous and values.size else values.tobytes()
        self._file.write(content)
        self._digest.update(content)

    def close(self) -> None:
        """Wait until everything is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


@final
class ShardWriter:
    """Append documents; a shard is closed at the document with its `shard_tokens`th token."""

    def __init__(self, folder: Path, *, split: str, dtype: str, shard_tokens: int) -> None:
        """Write `<split>_00000.ds` and following into an existing folder."""
        assert shard_tokens > 0, shard_tokens
        self._folder = folder
        self._split = split
        self._dtype = DTYPES[dtype]
        self._shard_tokens = shard_tokens
        self._shards: list[Shard] = []
        self._open: _OpenShard | None = None

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens appended so far."""
        return sum(shard.num_tokens for shard in self._shards) + (self._open.num_tokens if self._open else 0)

    def append(self, ids: NDArray[Any], ends: NDArray[np.int64], loss_mask: LossMask | None = None) -> None:
        """Add documents: their ids back to back, where each ends, and which ids carry loss (None: all)."""
        start = first = 0
        while first < len(ends):
            name = f"{self._split}_{len(self._shards):05d}.ds"
            shard = self._open = self._open or _OpenShard(self._folder, name)
            wanted = start + self._shard_tokens - shard.num_tokens
            last = min(int(np.searchsorted(ends, wanted)), len(ends) - 1)
            stop = int(ends[last])
            mask = None if loss_mask is None else loss_mask[start:stop]
            shard.append(ids[start:stop].astype(self._dtype, copy=False), ends[first : last + 1] - start, mask)
            start, first = stop, last + 1
            if shard.num_tokens >= self._shard_tokens:
                self._close_shard()

    def close(self, *, text_bytes: int) -> SplitManifest:
        """Finish the last shard and describe the split, whose documents have `text_bytes` bytes of UTF-8."""
        self._close_shard()
        return SplitManifest.of(self._shards, text_bytes=text_bytes)

    def _close_shard(self) -> None:
        if self._open is not None:
            self._shards.append(self._open.close())
            self._open = None


@final
class _OpenShard:
    """A shard being filled: its ids, document ends and, from the first masked document on, its loss mask."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self.num_tokens = self._num_documents = 0
        self._ids, self._index = HashedFile(folder / name), HashedFile(folder / f"{name}.index")
        self._mask: HashedFile | None = None

    def append(self, ids: NDArray[Any], ends: NDArray[np.int64], loss_mask: LossMask | None) -> None:
        if loss_mask is not None and self._mask is None:
            self._mask = HashedFile(self._folder / f"{self._name}.mask")
            self._mask.write(np.ones(self.num_tokens, np.uint8))  # earlier documents had no mask: all carry loss
        if self._mask is not None:
            marks = np.ones(len(ids), np.uint8) if loss_mask is None else loss_mask
            self._mask.write(np.ascontiguousarray(marks, dtype=np.uint8))
        self._ids.write(ids)
        self._index.write((ends + self.num_tokens).astype(INDEX_DTYPE))
        self.num_tokens += len(ids)
        self._num_documents += len(ends)

    def close(self) -> Shard:
        for file in (self._ids, self._index, self._mask):
            if file is not None:
                file.close()
        return Shard(
            file=self._name,
            num_tokens=self.num_tokens,
            num_documents=self._num_documents,
            sha256=self._ids.sha256,
            index_sha256=self._index.sha256,
            mask_sha256=self._mask.sha256 if self._mask else None,
        )


def finish_folder(
    folder: Path,
    *,
    name: str,
    tokenizer: Tokenizer,
    splits: Mapping[str, SplitManifest],
    dtype: str,
    **settings: object,
) -> None:
    """Write the tokenizer and the manifest of a data set that needs no preparation."""
    tokenizer.save(folder / TOKENIZER_FOLDER)
    manifest = Manifest(
        name=name,
        dtype=dtype,
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        splits=splits,
        source=name,
        settings=settings,
    )
    write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `dataset.json`, the same bytes for the same manifest."""
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest.to_json(), indent=1) + "\n")
