"""A data set folder's description of itself: `dataset.json`, and the fingerprint of the tokens it describes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

FORMAT = "lmtrain-shards-1"


@dataclass(frozen=True)
class Shard:
    """One file of ids, its index of document ends, and its loss mask where there is one.

    `file` may be an absolute path: another program's tokens are read in place. Their ids begin `offset_bytes` into the
    file, and `index` is the name of their document ends in this folder.
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
        """Return the name of the file of document ends: `.index` behind the shard's, if none is given."""
        return self.index or f"{self.file}.index"

    @property
    def is_native(self) -> bool:
        """Return whether this package wrote the ids: each document ends with end-of-text."""
        return self.offset_bytes is None

    @property
    def mask_file(self) -> str:
        """Return the name of the file with one byte a token, 1 where it carries loss."""
        return f"{self.file}.mask"


@dataclass(frozen=True)
class SplitManifest:
    """One split: its shards in order, and the bytes of the text they encode."""

    num_documents: int
    num_tokens: int
    text_bytes: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class References:
    """General compressors' results on the first `text_bytes` bytes of a held-out split."""

    text_bytes: int
    gzip_bits_per_byte: float
    xz_bits_per_byte: float


@dataclass(frozen=True)
class Manifest:
    """The tokens' format and their origin, for readers."""

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
        """Return the sha256 of all facts behind the tokens; the places of folder and source are none."""
        decides = {
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "tokenizer": self.tokenizer_fingerprint,
            "splits": {name: _without_place(_known(asdict(split))) for name, split in self.splits.items()},
        }
        return _sha256_of(decides)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `dataset.json`."""
        content = asdict(self)
        content["splits"] = {name: _known(split) for name, split in content["splits"].items()}
        whole = {"format": FORMAT, "fingerprint": self.fingerprint, **content}
        return {**whole, "manifest_sha256": _sha256_of(whole)}


def manifest_from_json(content: Any) -> Manifest:
    """Read the content of `dataset.json`.

    Raises:
        ValueError: Another format, a missing key, or a fingerprint of other content.
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
        fingerprint = manifest.fingerprint
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"a key is missing or of the wrong type ({problem})") from problem
    if fingerprint != content.get("fingerprint"):
        raise ValueError("its fingerprint does not belong to its content")
    if own_sha256 not in (None, _sha256_of(facts)):
        raise ValueError("its manifest_sha256 does not belong to its content")
    return manifest


def _sha256_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def shard_to_json(shard: Shard) -> dict[str, Any]:
    """Return a shard's known facts."""
    return {key: value for key, value in asdict(shard).items() if value is not None}


def _known(split: dict[str, Any]) -> dict[str, Any]:
    """Leave out facts of None of a split's shards: a manifest without them keeps its fingerprint."""
    shards = [{key: value for key, value in shard.items() if value is not None} for shard in split["shards"]]
    return {**split, "shards": shards}


def _without_place(split: dict[str, Any]) -> dict[str, Any]:
    return {**split, "shards": [{**shard, "file": Path(shard["file"]).name} for shard in split["shards"]]}


def _split_from_json(content: Mapping[str, Any]) -> SplitManifest:
    fields: dict[str, Any] = {**content, "shards": tuple(Shard(**shard) for shard in content["shards"])}
    return SplitManifest(**fields)
