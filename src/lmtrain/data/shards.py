"""The tokens on disk: flat files of ids, memory-mapped, described by `dataset.json`.

`B windows, L tokens of a window, S shards`.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.manifest import (
    DTYPES,
    INDEX_DTYPE,
    MANIFEST_FILE,
    MASK_DTYPE,
    TOKENIZER_FOLDER,
    DatasetFolder,
    Ids,
    Manifest,
    Shard,
    SplitManifest,
    manifest_from_json,
    size_problems,
)
from lmtrain.errors import DataError, suggest
from lmtrain.storage import foreign_json

REBUILD = "Delete the folder and prepare it again."


@final
class MappedFile:
    """`items` [N] of a file from `offset_bytes` on, read when touched, and a check that the file still holds them.

    The kernel ends a process with SIGBUS when it touches a mapped file's cut-off part.

    Raises:
        DataError: The file cannot be read, or is too short.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], *, num_items: int, offset_bytes: int = 0) -> None:
        self._path = path
        self._num_bytes = offset_bytes + num_items * dtype.itemsize
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), self._num_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as problem:  # ValueError: the file is shorter than that
            raise DataError(f"{path} cannot be read: {problem}. {REBUILD}") from problem
        self.items: NDArray[Any] = np.frombuffer(self._map, dtype, count=num_items, offset=offset_bytes)

    def require_whole(self) -> None:
        """Refuse a file that is shorter than it was."""
        num_bytes = self._map.size()
        if num_bytes < self._num_bytes:
            sizes = f"it has {num_bytes:,} bytes instead of {self._num_bytes:,}"
            raise DataError(f"{self._path} was cut off while it was read: {sizes}. {REBUILD}")


def map_ids(folder: Path, shard: Shard, dtype: np.dtype[Any]) -> MappedFile:
    """Return a shard's ids, mapped from the disk."""
    offset_bytes = shard.offset_bytes or 0
    return MappedFile(folder / shard.file, dtype, num_items=shard.num_tokens, offset_bytes=offset_bytes)


@final
class TokenSplit:
    """The ids of one split as one long row, read from its shards on demand."""

    def __init__(self, folder: Path, *, dtype: str, split: SplitManifest) -> None:
        """Describe the shards of a split; nothing is opened yet."""
        self._folder = folder
        self._shards = split.shards
        self.dtype = DTYPES[dtype]
        self.num_tokens = split.num_tokens
        self.num_documents = split.num_documents
        self.text_bytes = split.text_bytes
        self._ends = np.cumsum([shard.num_tokens for shard in split.shards], dtype=np.int64)
        self._maps: dict[tuple[int, str], MappedFile] = {}

    def window(self, start: int, num_tokens: int) -> Ids:
        """Return `num_tokens` ids from position `start` on, possibly across shards: [L]. Do not write to it."""
        pieces = [self.shard_ids(shard)[place] for shard, place in self._pieces(start, num_tokens)]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, self.dtype), *pieces])

    def windows(self, starts: NDArray[np.int64], num_tokens: int) -> Ids:
        """Return the windows at these positions: [B] -> [B, L]."""
        return np.stack([self.window(start, num_tokens) for start in starts.tolist()])

    def loss_mask(self, start: int, num_tokens: int) -> NDArray[np.bool_]:
        """Return which tokens from position `start` on carry loss as a target: [L]."""
        mask = np.ones(num_tokens, np.bool_)
        filled = 0
        for shard, place in self._pieces(start, num_tokens) if self.has_loss_mask else ():
            length = place.stop - place.start
            if (marks := self.shard_mask(shard)) is not None:
                mask[filled : filled + length] = marks[place]
            filled += length
        return mask

    @property
    def shard_starts(self) -> NDArray[np.int64]:
        """Return the position of each shard's first token, and behind the last one the number of tokens: [S + 1]."""
        return np.concatenate([np.zeros(1, np.int64), self._ends])

    def shard_ids(self, shard: int) -> Ids:
        """Return one shard's ids, mapped from the disk."""
        return self._map(shard, "ids")

    def shard_document_ends(self, shard: int) -> NDArray[np.uint64]:
        """Return the offset in a shard after each document's last id, mapped from the disk."""
        return self._map(shard, "index")

    def shard_mask(self, shard: int) -> NDArray[np.uint8] | None:
        """Return 1 for each token of a shard with loss as a target, mapped from the disk; None means all."""
        return self._map(shard, "mask") if self._shards[shard].mask_sha256 is not None else None

    @property
    def has_loss_mask(self) -> bool:
        """Return whether there are tokens without loss."""
        return any(shard.mask_sha256 is not None for shard in self._shards)

    def loss_share(self) -> float:
        """Return the share of tokens with loss in the first shard; 1 without a mask."""
        mask = self.shard_mask(0) if self._shards else None
        return 1.0 if mask is None else float(mask.mean(dtype=np.float64))

    @cached_property
    def first_learned(self) -> int | None:
        """Return the number of tokens up to the end of the first run with loss; None where no token has any."""
        for shard, start in enumerate(self.shard_starts[:-1].tolist()):
            if (mask := self.shard_mask(shard)) is None:
                return start + 1
            first = int(mask.argmax())
            if mask[first]:
                length = int(mask[first:].argmin()) or len(mask) - first
                return start + first + length
        return None

    def __getstate__(self) -> dict[str, object]:
        """Leave the memory maps behind: a loader process opens its own."""
        return {**self.__dict__, "_maps": {}}

    def _pieces(self, start: int, num_tokens: int) -> Iterator[tuple[int, slice]]:
        """Yield the shards of some tokens, and their places in each."""
        assert 0 <= start <= start + num_tokens <= self.num_tokens, (start, num_tokens, self.num_tokens)
        shard = int(self._ends.searchsorted(start, side="right"))
        while num_tokens > 0:
            size = self._shards[shard].num_tokens
            first = start - int(self._ends[shard]) + size
            length = min(num_tokens, size - first)
            yield shard, slice(first, first + length)
            start, num_tokens, shard = start + length, num_tokens - length, shard + 1

    def _map(self, number: int, what: str) -> NDArray[Any]:
        if (number, what) not in self._maps:
            folder, shard = self._folder, self._shards[number]
            if what == "ids":
                mapped = map_ids(folder, shard, self.dtype)
            elif what == "index":
                mapped = MappedFile(folder / shard.index_file, INDEX_DTYPE, num_items=shard.num_documents)
            else:
                mapped = MappedFile(folder / shard.mask_file, MASK_DTYPE, num_items=shard.num_tokens)
            self._maps[number, what] = mapped
        self._maps[number, what].require_whole()
        return self._maps[number, what].items


@dataclass(frozen=True)
class Dataset:
    """A data set folder that has all files of its manifest, in their sizes."""

    folder: Path
    manifest: Manifest

    @cached_property
    def splits(self) -> Mapping[str, TokenSplit]:
        """Return each split's tokens by its name."""
        described = self.manifest.splits.items()
        return {name: TokenSplit(self.folder, dtype=self.manifest.dtype, split=split) for name, split in described}

    @property
    def described(self) -> str:
        """Return its folder, with the tokens of each split."""
        tokens = ", ".join(f"{split.num_tokens:,} {name}" for name, split in self.manifest.splits.items())
        return f"{self.folder} ({tokens} tokens)"

    @property
    def tokenizer_folder(self) -> Path:
        """Return the folder of the tokenizer of these tokens."""
        return self.folder / TOKENIZER_FOLDER

    @property
    def is_native(self) -> bool:
        """Return whether all of it was prepared here, where every document ends with end-of-text."""
        return all(shard.is_native for shard in self.manifest.shards)

    def split(self, name: str) -> TokenSplit:
        """Return one split's tokens."""
        if name not in self.splits:
            known = ", ".join(self.splits)
            raise DataError(f"data set {self.folder} has no split '{name}', only {known}.{suggest(name, self.splits)}")
        return self.splits[name]

    def require_tokenizer(self, fingerprint: str, *, way: str = REBUILD) -> None:
        """Refuse tokens of another tokenizer; `way` is the nearest fix."""
        made_with = self.manifest.tokenizer_fingerprint
        if fingerprint != made_with:
            rule = f"was encoded with tokenizer {made_with[:12]}, not with {fingerprint[:12]}"
            raise DataError(f"data set {self.folder} {rule}; ids differ between tokenizers. {way}")


def open_dataset(folder: str | Path) -> Dataset:
    """Open a data set folder after a check of every file's size.

    Raises:
        DataError: The folder or a file is missing, empty, truncated, or of another type than in the manifest.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for problem in size_problems(folder, manifest):
        raise DataError(f"{problem}. {REBUILD}")
    return Dataset(folder=folder, manifest=manifest)


def existing_folder(*, path: str) -> DatasetFolder:
    """Return the folder of a prepared data set, after a check of every file's size."""
    return DatasetFolder(open_dataset(path).folder)


def read_manifest(folder: Path) -> Manifest:
    """Return a data set's description of itself; raises DataError where there is none, or a changed one."""
    path = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise DataError(f"data folder {folder} does not exist. Name a prepared one, or prepare it with data=prepared.")
    if not path.is_file():
        raise DataError(f"data folder {folder} has no {MANIFEST_FILE}, so it is not prepared. Use data=prepared.")
    try:
        return manifest_from_json(foreign_json.read(path))
    except ValueError as problem:
        raise DataError(f"{path} was changed or damaged: {problem}. {REBUILD}") from problem
