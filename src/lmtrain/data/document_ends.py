"""Where the documents of a split end, over all its shards, as one memory-mapped row: [documents]."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.atomic_folder import build_folder
from lmtrain.data.shards import Dataset, TokenSplit

ENDS_DTYPE = np.dtype("<i8")
ENDS_FILE = "document_ends.i64"
PACKING_FOLDER = "packing"  # below a data set: facts computed from its tokens, and computable again


def document_ends(dataset: Dataset, split: str = "train") -> NDArray[np.int64]:
    """Return where a split's documents end, memory-mapped; the ends of several shards are joined in a file, once."""
    tokens = dataset.split(split)
    if len(tokens.shard_starts) == 2:
        return tokens.shard_document_ends(0).view(ENDS_DTYPE)
    folder = dataset.folder / PACKING_FOLDER / f"document_ends-{split}-{dataset.manifest.fingerprint[:12]}"
    if not folder.is_dir():
        build_folder(folder, lambda aside: write_document_ends(tokens, aside / ENDS_FILE), tell=lambda _: None)
    return map_file(folder / ENDS_FILE, ENDS_DTYPE)


def ends_of_shards(split: TokenSplit) -> Iterator[NDArray[np.int64]]:
    """Yield each shard's document ends, counted from the split's first id."""
    for shard, start in enumerate(split.shard_starts[:-1].tolist()):
        yield split.shard_document_ends(shard).view(ENDS_DTYPE) + start


def write_document_ends(split: TokenSplit, path: Path) -> None:
    """Write all of them into one file, a shard at a time."""
    with path.open("wb") as file:
        for ends in ends_of_shards(split):
            file.write(ends.astype(ENDS_DTYPE, copy=False).tobytes())


def map_file(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a file's numbers, mapped from the disk and read when touched."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
