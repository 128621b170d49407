"""A data set folder's layout, and its description of itself: `dataset.json`, with a fingerprint of the tokens.

The layout is datatrove's and nanotron's (https://github.com/huggingface/datatrove): `<split>_00000.ds` holds
little-endian uint16 or uint32 ids back to back, `<split>_00000.ds.index` the uint64 offset of each document's end.
A `.ds.mask` next to a shard has one byte per token, 1 where the token carries loss as a target.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

FORMAT = "lmtrain-shards-1"
MANIFEST_FILE = "dataset.json"
TOKENIZER_FOLDER = "tokenizer"
INDEX_DTYPE = np.dtype("<u8")
MASK_DTYPE = np.dtype("u1")
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

DatasetFolder = NewType("DatasetFolder", Path)  # returned by the functions that `data.folder` may name
Ids = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Shard:
    """One file of ids, its index of document ends, and its loss mask where there is one.

    `file` may be an absolute path: another program's tokens are read in place. Their ids begin `offset_bytes` into the
    file, and `index` names their document ends in this folder.
    """

    file: str
    num_tokens: int
    num_documents: int
    sha256: str
    index_sha256: str
    mask_sha256: str | None = None
    offset_bytes: int | None = None
    index: str | None = None

    @property
    def index_file(self) -> str:
        """Return the name of the file of document ends."""
        return self.index or f"{self.file}.index"

    @property
    def mask_file(self) -> str:
        """Return the name of the file of the loss mask."""
        return f"{self.file}.mask"

    @property
    def is_native(self) -> bool:
        """Return whether this package wrote the ids, so that each document ends with end-of-text."""
        return self.offset_bytes is None

    def digests(self) -> dict[str, str]:
        """Return the sha256 of each file by its name."""
        found = {self.file: self.sha256, self.index_file: self.index_sha256, self.mask_file: self.mask_sha256}
        return {name: sha256 for name, sha256 in found.items() if sha256 is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set; a manifest written before a field existed keeps its fingerprint."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class SplitManifest:
    """One split: its shards in order, and the bytes of the text they encode."""

    num_documents: int
    num_tokens: int
    text_bytes: int
    shards: tuple[Shard, ...]

    @classmethod
    def of(cls, shards: Sequence[Shard], *, text_bytes: int) -> "SplitManifest":
        """Describe a split of these shards."""
        num_documents = sum(shard.num_documents for shard in shards)
        return cls(num_documents, sum(shard.num_tokens for shard in shards), text_bytes, tuple(shards))

    def to_json(self) -> dict[str, Any]:
        """Return the content for `dataset.json`."""
        return {**asdict(self), "shards": [shard.to_json() for shard in self.shards]}


@dataclass(frozen=True)
class References:
    """What gzip and xz make of the first `text_bytes` bytes of a held-out split."""

    text_bytes: int
    gzip_bits_per_byte: float
    xz_bits_per_byte: float


@dataclass(frozen=True)
class Manifest:
    """The format and the origin of a data set's tokens."""

    name: str
    dtype: str
    vocab_size: int
    tokenizer_fingerprint: str
    splits: Mapping[str, SplitManifest]
    references: Mapping[str, References] = field(default_factory=dict[str, References])
    source: str = ""
    source_fingerprint: str = ""
    code_version: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])  # documents by reason
    repaired: Mapping[str, int] = field(default_factory=dict[str, int])  # characters of the kept documents

    @cached_property
    def fingerprint(self) -> str:
        """Return the sha256 of everything that decides the tokens; where folder and source lie does not."""
        splits = {name: split.to_json() for name, split in self.splits.items()}
        for split in splits.values():
            split["shards"] = [{**shard, "file": Path(shard["file"]).name} for shard in split["shards"]]
        return _sha256_of(
            {
                "dtype": self.dtype,
                "vocab_size": self.vocab_size,
                "tokenizer": self.tokenizer_fingerprint,
                "splits": splits,
            }
        )

    @property
    def shards(self) -> list[Shard]:
        """Return the shards of all splits."""
        return [shard for split in self.splits.values() for shard in split.shards]

    def to_json(self) -> dict[str, Any]:
        """Return the content of `dataset.json`."""
        splits = {name: split.to_json() for name, split in self.splits.items()}
        whole = {"format": FORMAT, "fingerprint": self.fingerprint, **asdict(self), "splits": splits}
        return {**whole, "manifest_sha256": _sha256_of(whole)}


def manifest_from_json(content: Any) -> Manifest:
    """Read the content of `dataset.json`.

    Raises:
        ValueError: Another format, a missing key, or a fingerprint that does not match.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is not of the format {FORMAT}")
    facts: dict[str, Any] = {**content}
    own_sha256 = facts.pop("manifest_sha256", None)
    fields: dict[str, Any] = {key: value for key, value in facts.items() if key not in {"format", "fingerprint"}}
    try:
        fields["splits"] = {name: _split_from_json(split) for name, split in fields["splits"].items()}
        fields["references"] = {name: References(**values) for name, values in fields["references"].items()}
        manifest = Manifest(**fields)
        DTYPES[manifest.dtype]  # of this version
        fingerprint = manifest.fingerprint
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"a key is missing or of the wrong type ({problem})") from problem
    if fingerprint != content.get("fingerprint"):
        raise ValueError("its fingerprint does not match its content")
    if own_sha256 not in (None, _sha256_of(facts)):
        raise ValueError("its manifest_sha256 does not match its content")
    return manifest


def _split_from_json(content: Mapping[str, Any]) -> SplitManifest:
    fields: dict[str, Any] = {**content, "shards": tuple(Shard(**shard) for shard in content["shards"])}
    return SplitManifest(**fields)


def num_ids(dtype: str) -> int:
    """Return how many different ids a type holds."""
    return 1 << (8 * DTYPES[dtype].itemsize)


def narrowest_dtype(vocab_size: int) -> str:
    """Return the narrowest type for every id: uint16 up to 65,536 entries, else uint32."""
    return "uint16" if vocab_size <= num_ids("uint16") else "uint32"


def read_index(folder: Path, shard: Shard) -> NDArray[np.int64]:
    """Return the offset in the shard after each document's last id."""
    return np.fromfile(folder / shard.index_file, dtype=INDEX_DTYPE).astype(np.int64, copy=False)


def size_problems(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a line for each file that is missing, empty, or of another size than in the manifest."""
    ids = DTYPES[manifest.dtype]
    for shard in manifest.shards:
        yield from _size_problem(folder / shard.file, shard.num_tokens, ids, "tokens", shard.offset_bytes)
        yield from _size_problem(folder / shard.index_file, shard.num_documents, INDEX_DTYPE, "document ends")
        if shard.mask_sha256 is not None:
            yield from _size_problem(folder / shard.mask_file, shard.num_tokens, MASK_DTYPE, "loss marks")


def _size_problem(
    path: Path, num_items: int, dtype: np.dtype[Any], what: str, offset_bytes: int | None = None
) -> Iterator[str]:
    expected_bytes = num_items * dtype.itemsize + (offset_bytes or 0)
    if not path.is_file():
        yield f"{path} is missing, but {MANIFEST_FILE} lists it"
    elif (num_bytes := path.stat().st_size) == 0:
        yield f"{path} is empty instead of {num_items:,} {what}"
    elif num_bytes != expected_bytes:
        expected = f"{expected_bytes:,} ({num_items:,} {what} of {dtype})"
        yield f"{path} has {num_bytes:,} bytes instead of {expected}: truncated, or of another type"


def _sha256_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
