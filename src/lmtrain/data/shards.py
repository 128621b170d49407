"""The tokens on disk: flat files of ids, memory-mapped, described by `dataset.json`.

The layout is datatrove's and nanotron's (https://github.com/huggingface/datatrove): `<split>_00000.ds` holds
little-endian uint16 or uint32 ids back to back, `<split>_00000.ds.index` the uint64 offset at which each document ends.
`B windows, L tokens of a window`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.manifest import Manifest, SplitManifest, manifest_from_json
from lmtrain.errors import ConfigurationError, DataError, suggest

MANIFEST_FILE = "dataset.json"
TOKENIZER_FOLDER = "tokenizer"
INDEX_DTYPE = np.dtype("<u8")
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
REBUILD = "Delete the folder and prepare it again."

Ids = NDArray[np.unsignedinteger[Any]]


@final
class TokenSplit:
    """The ids of one split as one long row, read from its shards when asked for."""

    def __init__(self, folder: Path, *, dtype: str, split: SplitManifest) -> None:
        """Describe the shards of a split; nothing is opened yet."""
        self._folder = folder
        self._shards = split.shards
        self.dtype = DTYPES[dtype]
        self.num_tokens = split.num_tokens
        self.num_documents = split.num_documents
        self.text_bytes = split.text_bytes
        self._ends = np.cumsum([shard.num_tokens for shard in split.shards], dtype=np.int64)
        self._maps: dict[int, Ids] = {}

    def window(self, start: int, num_tokens: int) -> Ids:
        """Return `num_tokens` ids from position `start` on, across shards where need be: [L]. Do not write to it."""
        assert 0 <= start <= start + num_tokens <= self.num_tokens, (start, num_tokens, self.num_tokens)
        pieces: list[Ids] = []
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while num_tokens > 0:
            offset = start - self._start_of(shard)
            piece = self._ids(shard)[offset : offset + num_tokens]
            pieces.append(piece)
            start, num_tokens, shard = start + len(piece), num_tokens - len(piece), shard + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, self.dtype), *pieces])

    def windows(self, starts: NDArray[np.int64], num_tokens: int) -> Ids:
        """Return the windows that begin at these positions: [B] -> [B, L]."""
        rows = np.empty((len(starts), num_tokens), self.dtype)
        shards = np.searchsorted(self._ends, starts, side="right")
        inside = starts + num_tokens <= self._ends[shards]
        for shard in np.unique(shards[inside]):
            mine = inside & (shards == shard)
            rows[mine] = _every_window(self._ids(int(shard)), num_tokens)[starts[mine] - self._start_of(int(shard))]
        for row in np.flatnonzero(~inside):
            rows[row] = self.window(int(starts[row]), num_tokens)
        return rows

    def document_ends(self) -> NDArray[np.int64]:
        """Return the position after each document's last id, counted over all shards: [documents]."""
        starts = [self._start_of(shard) for shard in range(len(self._shards))]
        return np.concatenate(
            [read_index(self._folder / shard.file) + start for shard, start in zip(self._shards, starts, strict=True)]
        )

    def __getstate__(self) -> dict[str, object]:
        """Leave the memory maps behind: a loader process opens its own."""
        return {**self.__dict__, "_maps": {}}

    def _start_of(self, shard: int) -> int:
        return int(self._ends[shard]) - self._shards[shard].num_tokens

    def _ids(self, shard: int) -> Ids:
        if shard not in self._maps:
            mapped = np.memmap(self._folder / self._shards[shard].file, dtype=self.dtype, mode="r")
            self._maps[shard] = mapped.view(np.ndarray)
        return self._maps[shard]


@dataclass(frozen=True)
class Dataset:
    """A data set folder whose files are all there, with the sizes its manifest tells."""

    folder: Path
    manifest: Manifest

    @cached_property
    def splits(self) -> Mapping[str, TokenSplit]:
        """Return each split's tokens by its name."""
        described = self.manifest.splits.items()
        return {name: TokenSplit(self.folder, dtype=self.manifest.dtype, split=split) for name, split in described}

    @property
    def tokenizer_folder(self) -> Path:
        """Return where the tokenizer of these tokens lies."""
        return self.folder / TOKENIZER_FOLDER

    def split(self, name: str) -> TokenSplit:
        """Return one split's tokens.

        Raises:
            DataError: There is no such split.
        """
        if name not in self.splits:
            known = ", ".join(self.splits)
            raise DataError(f"data set {self.folder} has no split '{name}', only {known}.{suggest(name, self.splits)}")
        return self.splits[name]

    def require_tokenizer(self, fingerprint: str) -> None:
        """Refuse tokens that another tokenizer made.

        Raises:
            DataError: The tokens were made with another tokenizer.
        """
        made_with = self.manifest.tokenizer_fingerprint
        if fingerprint != made_with:
            msg = (
                f"data set {self.folder} was encoded with tokenizer {made_with[:12]}, this run has {fingerprint[:12]}; "
                f"ids mean nothing across tokenizers. Use {self.tokenizer_folder}, or prepare the data again."
            )
            raise DataError(msg)


def open_dataset(folder: str | Path) -> Dataset:
    """Open a data set folder after a look at every file's size.

    Raises:
        DataError: The folder or a file is missing, empty, truncated, or of another type than the manifest tells.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    if manifest.dtype not in DTYPES:
        msg = f"data set {folder} has dtype {manifest.dtype!r}; this version reads {' and '.join(DTYPES)}. {REBUILD}"
        raise DataError(msg)
    if manifest.vocab_size > num_ids(manifest.dtype):
        msg = (
            f"data set {folder} has dtype {manifest.dtype} for {manifest.vocab_size:,} entries; "
            f"it holds at most {num_ids(manifest.dtype):,}. {REBUILD}"
        )
        raise DataError(msg)
    for split in manifest.splits.values():
        for shard in split.shards:
            _require_size(folder / shard.file, shard.num_tokens, DTYPES[manifest.dtype], "tokens")
            _require_size(index_of(folder / shard.file), shard.num_documents, INDEX_DTYPE, "document ends")
    return Dataset(folder=folder, manifest=manifest)


def existing_folder(*, path: str) -> Path:
    """Return the folder of a data set that is already prepared, after a look at every file's size."""
    return open_dataset(path).folder


def num_ids(dtype: str) -> int:
    """Return how many different ids a type holds."""
    return 1 << (8 * DTYPES[dtype].itemsize)


def narrowest_dtype(vocab_size: int) -> str:
    """Return the narrowest type that holds every id: uint16 up to 65,536 entries, else uint32."""
    for dtype in DTYPES:
        if vocab_size <= num_ids(dtype):
            return dtype
    raise ConfigurationError(
        f"tokenizer.vocab_size={vocab_size} is more than a uint32 id can tell apart; at most {num_ids('uint32'):,}."
    )


def index_of(shard: Path) -> Path:
    """Return where a shard's document ends are."""
    return shard.with_name(shard.name + ".index")


def read_index(shard: Path) -> NDArray[np.int64]:
    """Return the offset in the shard after each document's last id."""
    return np.fromfile(index_of(shard), dtype=INDEX_DTYPE).astype(np.int64)


def shard_file(split: str, number: int) -> str:
    """Return the name of a split's shard."""
    return f"{split}_{number:05d}.ds"


def _every_window(ids: Ids, num_tokens: int) -> Ids:
    # A view [N - L + 1, L] without a copy: gathering its rows is one call into numpy.
    shape = (len(ids) - num_tokens + 1, num_tokens)
    return np.ndarray(shape, ids.dtype, buffer=ids, strides=(ids.itemsize, ids.itemsize))


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise DataError(f"data folder {folder} does not exist. Name a prepared one, or prepare it with data=prepared.")
    if not path.is_file():
        raise DataError(
            f"data folder {folder} has no {MANIFEST_FILE}: it is not a prepared data set. Use data=prepared."
        )
    try:
        return manifest_from_json(json.loads(path.read_text()))
    except ValueError as problem:
        raise DataError(f"{path} cannot be used: {problem}. {REBUILD}") from problem


def _require_size(path: Path, num_items: int, dtype: np.dtype[Any], what: str) -> None:
    if not path.is_file():
        raise DataError(f"{path} is missing, but {MANIFEST_FILE} lists it. {REBUILD}")
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise DataError(f"{path} is empty instead of {num_items:,} {what}. {REBUILD}")
    if num_bytes != num_items * dtype.itemsize:
        expected = f"{num_items * dtype.itemsize:,} ({num_items:,} {what} of {dtype})"
        msg = f"{path} has {num_bytes:,} bytes instead of {expected}: truncated, or of another type. {REBUILD}"
        raise DataError(msg)
