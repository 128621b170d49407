"""How a data set folder is laid out: the names, types and sizes of its files.

The layout is datatrove's and nanotron's (https://github.com/huggingface/datatrove): `<split>_00000.ds` holds
little-endian uint16 or uint32 ids back to back, `<split>_00000.ds.index` the uint64 offset of each document's end.
A `.ds.mask` beside a shard has a byte a token, 1 where it carries loss as a target.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.manifest import Manifest, Shard
from lmtrain.data.mapped_file import MappedFile
from lmtrain.errors import ConfigurationError

MANIFEST_FILE = "dataset.json"
TOKENIZER_FOLDER = "tokenizer"
INDEX_DTYPE = np.dtype("<u8")
MASK_DTYPE = np.dtype("u1")
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

DatasetFolder = NewType("DatasetFolder", Path)  # that a function found or built whole, for data.folder
Ids = NDArray[np.unsignedinteger[Any]]


def num_ids(dtype: str) -> int:
    """Return how many different ids a type holds."""
    return 1 << (8 * DTYPES[dtype].itemsize)


def narrowest_dtype(vocab_size: int) -> str:
    """Return the narrowest type for every id: uint16 up to 65,536 entries, else uint32."""
    for dtype in DTYPES:
        if vocab_size <= num_ids(dtype):
            return dtype
    raise ConfigurationError(
        f"tokenizer.vocab_size={vocab_size} is beyond uint32 ids; at most {num_ids('uint32'):,}."
    )


def shard_file(split: str, number: int) -> str:
    """Return the name of a split's shard."""
    return f"{split}_{number:05d}.ds"


def map_ids(folder: Path, shard: Shard, dtype: np.dtype[Any]) -> MappedFile:
    """Return a shard's ids, mapped from the disk and read when touched."""
    offset_bytes = shard.offset_bytes or 0
    return MappedFile(folder / shard.file, dtype, num_items=shard.num_tokens, offset_bytes=offset_bytes)


def read_index(folder: Path, shard: Shard) -> NDArray[np.int64]:
    """Return the offset in the shard after each document's last id."""
    return np.fromfile(folder / shard.index_file, dtype=INDEX_DTYPE).astype(np.int64, copy=False)


def size_problems(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield each file missing, empty, or of another size than in the manifest."""
    for split in manifest.splits.values():
        for shard in split.shards:
            ids = DTYPES[manifest.dtype]
            yield from _size_problem(folder / shard.file, shard.num_tokens, ids, "tokens", shard.offset_bytes)
            yield from _size_problem(folder / shard.index_file, shard.num_documents, INDEX_DTYPE, "document ends")
            if shard.mask_sha256 is not None:
                yield from _size_problem(folder / shard.mask_file, shard.num_tokens, MASK_DTYPE, "loss marks")


def _size_problem(
    path: Path, num_items: int, dtype: np.dtype[Any], what: str, offset_bytes: int | None = None
) -> Iterator[str]:
    if not path.is_file():
        yield f"{path} is missing, but {MANIFEST_FILE} lists it"
        return
    num_bytes = path.stat().st_size
    expected_bytes = num_items * dtype.itemsize + (offset_bytes or 0)
    if num_bytes == 0:
        yield f"{path} is empty instead of {num_items:,} {what}"
    elif num_bytes != expected_bytes:
        expected = f"{expected_bytes:,} ({num_items:,} {what} of {dtype})"
        yield f"{path} has {num_bytes:,} bytes instead of {expected}: truncated, or of another type"
