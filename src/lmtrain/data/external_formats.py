"""Token files of other programs, described where they lie: nothing is copied.

- datatrove (https://github.com/huggingface/datatrove, tokens/tokenizer.py): the layout of our own shards.
- llm.c (https://github.com/karpathy/llm.c, dev/data/data_common.py): 256 int32 of header (magic, version, number of
  ids), then the ids. Magic 20240520 version 1 has uint16 ids (GPT-2), 20240801 version 7 uint32 ids (Llama 3).
- Megatron (https://github.com/NVIDIA/Megatron-LM, core/datasets/indexed_dataset.py): `.bin` holds ids; `.idx` holds
  `MMIDIDX`, a version, a code for the type, the numbers of sequences and documents, each sequence's length (int32) and
  byte offset (int64), and each document's first sequence (int64).
- nanoGPT (https://github.com/karpathy/nanoGPT, data/openwebtext/prepare.py): uint16 ids without a header.
- OLMo (https://github.com/allenai/OLMo-core): ids without a header, although the files are named `.npy`.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.manifest import DTYPES, Ids, narrowest_dtype
from lmtrain.errors import DataError
from lmtrain.storage.damage import refuse_damage

LLM_C_HEADER_BYTES = 256 * 4
LLM_C_DTYPES = {(20240520, 1): "uint16", (20240801, 7): "uint32"}  # by magic number and version

MEGATRON_BEGIN = struct.pack("<9sQ", b"MMIDIDX\x00\x00", 1)  # with the version
MEGATRON_HEADER = struct.Struct("<17sBQQ")
MEGATRON_DTYPES = {4: "uint32", 8: "uint16"}  # code 4 is int32, and ids are never negative


@dataclass(frozen=True)
class TokenFile:
    """`num_tokens` little-endian ids of type `dtype`, `offset_bytes` into a file.

    `read_ends` returns the offset after each document's last id, where the format knows it; None: an end-of-text id
    ends a document.
    """

    path: Path
    dtype: str
    offset_bytes: int
    num_tokens: int
    read_ends: Callable[[], NDArray[np.int64]] | None = None

    def ids(self) -> Ids:
        """Return the ids, mapped from the disk."""
        shape = (self.num_tokens,)
        return np.memmap(self.path, DTYPES[self.dtype], mode="r", offset=self.offset_bytes, shape=shape).view(
            np.ndarray
        )


def read_datatrove(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a shard; `dtype` None is the narrowest for the vocabulary."""
    file = _headerless(path, dtype=dtype or narrowest_dtype(vocab_size))
    index = path.with_name(f"{path.name}.index")
    if _size_of(index) % 8:
        raise DataError(f"{index} has {_size_of(index):,} bytes, not a multiple of 8: it is cut off.")

    def read_ends() -> NDArray[np.int64]:
        ends = np.fromfile(index, "<u8").astype(np.int64)
        if ends[-1] != file.num_tokens or not (np.diff(ends, prepend=0) >= 0).all():
            found = f"{index} ends at {ends[-1]:,}, {path} has {file.num_tokens:,} ids of {file.dtype}"
            raise DataError(f"{found}: set data.folder.dtype, or fetch the files again.")
        return np.unique(ends[ends > 0])

    return TokenFile(path, file.dtype, offset_bytes=0, num_tokens=file.num_tokens, read_ends=read_ends)


def read_llm_c(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a file by its header."""
    del vocab_size, dtype
    num_bytes = _size_of(path)
    header = np.fromfile(path, dtype="<i4", count=256)
    magic, version, num_tokens = (int(value) for value in header[:3]) if len(header) == 256 else [0] * 3
    found = LLM_C_DTYPES.get((magic, version))
    if found is None:
        known = " or ".join(f"{magic}, {version}" for magic, version in LLM_C_DTYPES)
        raise DataError(f"{path} begins with {magic}, {version}, not as llm.c ({known}); nanogpt has no header.")
    expected = LLM_C_HEADER_BYTES + num_tokens * DTYPES[found].itemsize
    if num_tokens < 1 or num_bytes != expected:
        raise DataError(f"{path} has {num_bytes:,} bytes, its header declares {num_tokens:,} ids: {expected:,} bytes.")
    return TokenFile(path, found, offset_bytes=LLM_C_HEADER_BYTES, num_tokens=num_tokens)


def read_megatron(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a pair of files by either of its names, or by their common beginning."""
    del vocab_size, dtype
    stem = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    ids, index = stem.with_name(f"{stem.name}.bin"), stem.with_name(f"{stem.name}.idx")
    num_bytes, (code, num_sequences, num_starts) = _size_of(ids), _megatron_header(index)
    found = MEGATRON_DTYPES.get(code)
    if found is None:
        raise DataError(f"{index} declares ids of code {code}; expected 8 (uint16) or 4 (int32).")
    size, itemsize = MEGATRON_HEADER.size, DTYPES[found].itemsize
    lengths = np.memmap(index, "<i4", mode="r", offset=size, shape=(num_sequences,))
    num_tokens = int(lengths.sum(dtype=np.int64))
    if num_tokens == 0 or num_bytes != num_tokens * itemsize:
        raise DataError(f"{ids} has {num_bytes:,} bytes, its index declares {num_tokens:,} ids of {itemsize}.")
    offsets = np.memmap(index, "<i8", mode="r", offset=size + num_sequences * 4, shape=(num_sequences,))
    if not np.array_equal(offsets, (np.cumsum(lengths, dtype=np.int64) - lengths) * itemsize):
        raise DataError(f"{index} has sequences out of order: merge them into one pair with Megatron's merge tool.")

    def read_ends() -> NDArray[np.int64]:
        starts = np.fromfile(index, "<i8", num_starts, offset=size + num_sequences * 12)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        with refuse_damage(index, fix="fetch it again"):
            return np.unique(np.append(ends[starts[starts > 0]], num_tokens))

    return TokenFile(ids, found, offset_bytes=0, num_tokens=num_tokens, read_ends=read_ends)


def read_nanogpt(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a file; `dtype` None is uint16 for any vocabulary."""
    del vocab_size
    return _headerless(path, dtype=dtype or "uint16")


def read_olmo(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a file; `dtype` None is the narrowest for the vocabulary, as in OLMo-core."""
    return _headerless(path, dtype=dtype or narrowest_dtype(vocab_size))


READERS: Mapping[str, Callable[..., TokenFile]] = {
    "datatrove": read_datatrove,
    "llm_c": read_llm_c,
    "megatron": read_megatron,
    "nanogpt": read_nanogpt,
    "olmo": read_olmo,
}  # each raises DataError where a file is missing or not of its format


def _megatron_header(index: Path) -> tuple[int, int, int]:
    """Return the code of the type, and the numbers of sequences and of document starts."""
    num_bytes = _size_of(index)
    with index.open("rb") as file:
        header = file.read(MEGATRON_HEADER.size)
    if len(header) < MEGATRON_HEADER.size or not header.startswith(MEGATRON_BEGIN):
        raise DataError(f"{index} does not begin with MMIDIDX and version 1: it is not Megatron's index.")
    _, code, num_sequences, num_starts = MEGATRON_HEADER.unpack(header)
    expected = MEGATRON_HEADER.size + num_sequences * 12 + num_starts * 8
    if num_bytes < expected:
        raise DataError(
            f"{index} has {num_bytes:,} bytes instead of {expected:,} ({num_sequences:,} sequences): cut off."
        )
    return code, num_sequences, num_starts


def _headerless(path: Path, *, dtype: str) -> TokenFile:
    """Return a file that holds nothing but ids."""
    num_bytes, itemsize = _size_of(path), DTYPES[dtype].itemsize
    if num_bytes % itemsize:
        raise DataError(f"{path} has {num_bytes:,} bytes, not a multiple of a {dtype} id: another format, or cut off.")
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise DataError(f"{path} is an array saved by numpy: write its ids with tofile().")
    return TokenFile(path, dtype, offset_bytes=0, num_tokens=num_bytes // itemsize)


def _size_of(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path} does not exist (current folder: {Path.cwd()}).")
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise DataError(f"{path} is empty.")
    return num_bytes
