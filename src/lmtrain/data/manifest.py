"""What a data set folder says about itself: `dataset.json`, and the fingerprint of the tokens it describes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

FORMAT = "lmtrain-shards-1"


@dataclass(frozen=True)
class Shard:
    """One `.ds` file of ids and its `.ds.index` of document ends."""

    file: str
    num_tokens: int
    num_documents: int
    sha256: str
    index_sha256: str


@dataclass(frozen=True)
class SplitManifest:
    """One split: its shards in order, and the bytes of the text they encode."""

    num_documents: int
    num_tokens: int
    text_bytes: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class References:
    """What general compressors reach on the first `text_bytes` bytes of a held-out split."""

    text_bytes: int
    gzip_bits_per_byte: float
    xz_bits_per_byte: float


@dataclass(frozen=True)
class Manifest:
    """Everything that a reader of the tokens has to know, and where they came from."""

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
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])

    @cached_property
    def fingerprint(self) -> str:
        """Return the sha256 of what decides the tokens, wherever the folder and its source lie."""
        decides = {
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "tokenizer": self.tokenizer_fingerprint,
            "splits": {name: asdict(split) for name, split in self.splits.items()},
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the content of `dataset.json`."""
        return {"format": FORMAT, "fingerprint": self.fingerprint, **asdict(self)}


def manifest_from_json(content: Any) -> Manifest:
    """Read the content of `dataset.json`.

    Raises:
        ValueError: Another format, a missing key, or a fingerprint that does not belong to the content.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is not of the format {FORMAT}")
    fields: dict[str, Any] = {key: value for key, value in content.items() if key not in {"format", "fingerprint"}}
    try:
        fields["splits"] = {name: _split_from_json(split) for name, split in fields["splits"].items()}
        fields["references"] = {name: References(**values) for name, values in fields["references"].items()}
        manifest = Manifest(**fields)
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"a key is missing or of the wrong type ({problem})") from problem
    if manifest.fingerprint != content.get("fingerprint"):
        raise ValueError("its fingerprint does not belong to its content")
    return manifest


def _split_from_json(content: Mapping[str, Any]) -> SplitManifest:
    fields: dict[str, Any] = {**content, "shards": tuple(Shard(**shard) for shard in content["shards"])}
    return SplitManifest(**fields)
