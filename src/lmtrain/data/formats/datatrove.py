"""datatrove's output (https://github.com/huggingface/datatrove, tokens/tokenizer.py): the layout of our own shards.

`.ds` holds ids, `.ds.index` the uint64 offset after each document; `.ds.metadata`, where it is there, names the
tokenizer and the bytes of an id: `NAME|2`.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.formats.token_file import TokenFile, headerless, size_of
from lmtrain.data.layout import narrowest_dtype
from lmtrain.errors import DataError

OF_BYTES = {"2": "uint16", "4": "uint32"}


def read(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a shard; `dtype` None takes the metadata's, else the narrowest for the vocabulary.

    Raises:
        DataError: The ids or their index are missing, or do not belong together.
    """
    stated = _stated_dtype(path)
    if dtype is not None and stated is not None and dtype != stated:
        raise DataError(f"data.folder.dtype={dtype} differs from {path}.metadata: {stated}.")
    file = headerless(path, dtype=dtype or stated or narrowest_dtype(vocab_size), what="datatrove's .ds")
    index = path.with_name(f"{path.name}.index")
    if size_of(index) % 8:
        raise DataError(f"{index} has {size_of(index):,} bytes, no whole number of uint64: it is cut off.")

    def read_ends() -> NDArray[np.int64]:
        ends = np.fromfile(index, "<u8").astype(np.int64)
        if ends[-1] != file.num_tokens or not (np.diff(ends, prepend=0) >= 0).all():
            msg = f"{index} ends at {ends[-1]:,}, {path} has {file.num_tokens:,} ids of {file.dtype}"
            raise DataError(f"{msg}: another type (data.folder.dtype), or of other files.")
        return np.unique(ends[ends > 0])

    return TokenFile(path, file.dtype, offset_bytes=0, num_tokens=file.num_tokens, read_ends=read_ends)


def _stated_dtype(path: Path) -> str | None:
    metadata = path.with_name(f"{path.name}.metadata")
    if not metadata.is_file():
        return None
    return OF_BYTES.get(metadata.read_text().split("\n", 1)[0].rpartition("|")[2].strip())
