"""Write one split's documents as shards; where a shard ends depends on the documents alone, not on how they arrive."""

import hashlib
import json
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.manifest import Manifest, Shard, SplitManifest
from lmtrain.data.shards import DTYPES, INDEX_DTYPE, MANIFEST_FILE, index_of, shard_file


@final
class ShardWriter:
    """Append documents; a shard is closed by the document that brings it to `shard_tokens`."""

    def __init__(self, folder: Path, *, split: str, dtype: str, shard_tokens: int) -> None:
        """Write `<split>_00000.ds` and on into a folder that exists."""
        assert shard_tokens > 0, shard_tokens
        self._folder = folder
        self._split = split
        self._dtype = DTYPES[dtype]
        self._shard_tokens = shard_tokens
        self._shards: list[Shard] = []
        self._open: _OpenShard | None = None

    def append(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Add documents: their ids back to back, and where in them each document ends."""
        start = first = 0
        while first < len(ends):
            shard = self._open = self._open or _OpenShard(self._folder / shard_file(self._split, len(self._shards)))
            wanted = start + self._shard_tokens - shard.num_tokens
            last = min(int(np.searchsorted(ends, wanted)), len(ends) - 1)
            stop = int(ends[last])
            shard.append(ids[start:stop].astype(self._dtype, copy=False), ends[first : last + 1] - start)
            start, first = stop, last + 1
            if shard.num_tokens >= self._shard_tokens:
                self._close_shard()

    def close(self, *, text_bytes: int) -> SplitManifest:
        """Finish the last shard and describe the split, whose documents have `text_bytes` bytes of UTF-8."""
        self._close_shard()
        return SplitManifest(
            num_documents=sum(shard.num_documents for shard in self._shards),
            num_tokens=sum(shard.num_tokens for shard in self._shards),
            text_bytes=text_bytes,
            shards=tuple(self._shards),
        )

    def _close_shard(self) -> None:
        if self._open is not None:
            self._shards.append(self._open.close())
            self._open = None


@final
class _OpenShard:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._sha256 = hashlib.sha256()
        self._ends: list[NDArray[np.int64]] = []
        self.num_tokens = 0

    def append(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> None:
        content = ids.tobytes()
        self._file.write(content)
        self._sha256.update(content)
        self._ends.append(ends + self.num_tokens)
        self.num_tokens += len(ids)

    def close(self) -> Shard:
        self._file.close()
        ends = np.concatenate(self._ends).astype(INDEX_DTYPE)
        index_of(self._path).write_bytes(ends.tobytes())
        return Shard(
            file=self._path.name,
            num_tokens=self.num_tokens,
            num_documents=len(ends),
            sha256=self._sha256.hexdigest(),
            index_sha256=hashlib.sha256(ends.tobytes()).hexdigest(),
        )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `dataset.json`, the same bytes for the same manifest."""
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest.to_json(), indent=1) + "\n")
