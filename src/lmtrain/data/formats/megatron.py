"""Megatron's indexed data set (https://github.com/NVIDIA/Megatron-LM, core/datasets/indexed_dataset.py).

`.bin` holds ids. `.idx` holds `MMIDIDX`, a version, a code for the type, how many sequences and documents there are,
each sequence's length (int32) and byte offset (int64), and each document's first sequence (int64).
"""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.formats.token_file import TokenFile, size_of
from lmtrain.data.layout import DTYPES
from lmtrain.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
# Ids are never negative, so int32 reads as uint32; code 8 is uint16.
OF_CODE = {4: "uint32", 8: "uint16"}
NAMES = {1: "uint8", 2: "int8", 3: "int16", 5: "int64", 6: "float64", 7: "float32"}


def read(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a pair by either of its names, or by their common beginning.

    Raises:
        DataError: No such pair, another version or type, or another file's index.
    """
    del vocab_size
    stem = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    ids, index = stem.with_name(f"{stem.name}.bin"), stem.with_name(f"{stem.name}.idx")
    num_bytes, num_index_bytes = size_of(ids), size_of(index)
    with index.open("rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise DataError(f"{index} does not begin with MMIDIDX: it is not Megatron's index.")
    _, version, code, num_sequences, num_starts = HEADER.unpack(header)
    if version != 1:
        raise DataError(f"{index} is version {version}; this reads version 1.")
    if code not in OF_CODE or dtype not in (None, OF_CODE[code]):
        asked = f", data.folder.dtype={dtype}" if dtype else ""
        name = OF_CODE.get(code) or NAMES.get(code, "unknown")
        raise DataError(f"{index} declares ids of type {name} (code {code}){asked}; this reads uint16 and int32.")
    expected = HEADER.size + num_sequences * 12 + num_starts * 8
    if num_index_bytes < expected:
        msg = f"{index} has {num_index_bytes:,} bytes, {num_sequences:,} sequences take {expected:,}: cut off."
        raise DataError(msg)
    lengths = np.memmap(index, "<i4", mode="r", offset=HEADER.size, shape=(num_sequences,))
    num_tokens = int(lengths.sum(dtype=np.int64))
    itemsize = DTYPES[OF_CODE[code]].itemsize
    if num_tokens == 0 or num_bytes != num_tokens * itemsize:
        raise DataError(f"{ids} has {num_bytes:,} bytes, its index declares {num_tokens:,} ids of {itemsize}.")
    _require_in_order(index, lengths, itemsize, num_sequences)

    def read_ends() -> NDArray[np.int64]:
        starts = np.fromfile(index, "<i8", num_starts, offset=HEADER.size + num_sequences * 12)
        if len(starts) and not 0 <= starts.min() <= starts.max() <= num_sequences:
            raise DataError(f"{index} has documents beyond its {num_sequences:,} sequences: damaged.")
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        return np.unique(np.append(ends[starts[starts > 0]], num_tokens))

    return TokenFile(ids, OF_CODE[code], offset_bytes=0, num_tokens=num_tokens, read_ends=read_ends)


def _require_in_order(index: Path, lengths: NDArray[np.int32], itemsize: int, num_sequences: int) -> None:
    offsets = np.memmap(index, "<i8", mode="r", offset=HEADER.size + num_sequences * 4, shape=(num_sequences,))
    expected = np.cumsum(lengths, dtype=np.int64) - lengths
    if not np.array_equal(offsets, expected * itemsize):
        raise DataError(f"{index} has sequences out of order: merge them into one pair with Megatron's merge tool.")
