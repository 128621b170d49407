"""The interface of tokenizers: text to ids and back through bytes, and how many bytes each id stands for."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmtrain.tokenizers.flat_ids import FlatIds, flatten

TOKENIZER_FILE = "tokenizer.json"
META_FILE = "tokenizer.meta.json"
MAX_IDS = 1 << 24  # sixty times the largest in use: each id takes memory


class Tokenizer(ABC):
    """Text to ids and back. Special tokens have ids, but no typed text ever becomes one."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Return how many entries there are, special tokens included; every id is below it."""

    @property
    @abstractmethod
    def end_of_text_id(self) -> int:
        """Return the id of a document's end."""

    @property
    @abstractmethod
    def special_tokens(self) -> Mapping[str, int]:
        """Return the special tokens by name; only whoever holds this table can write one."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Return the sha256 of all facts behind the ids, in hexadecimal."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; no special token is added or recognised."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, on as many threads as the tokenizer has."""

    @abstractmethod
    def bytes_of_ids(self) -> tuple[bytes, ...]:
        """Return the bytes of each id; special tokens stand for none."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`, for other tools too, and `tokenizer.meta.json` into a folder."""

    def keep_words(self, num_words: int) -> None:
        """Keep the ids of so many words or uncut texts for each thread, where any are kept; 0: of none."""
        del num_words

    def encode_batch_flat(self, texts: Sequence[str]) -> FlatIds:
        """Return the ids of all texts back to back [N], and where each text's end [num_texts]: the fast way."""
        return flatten(self.encode_batch(texts))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of the ids; special tokens vanish, and so do ids of a larger model's further rows."""
        table = self.bytes_of_ids()
        return b"".join([table[token] for token in ids if token < len(table)])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; bytes outside UTF-8 (half a character) become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> NDArray[np.uint16]:
        """Return how many bytes each id stands for, 0 for special tokens: [V]."""
        return np.array([len(piece) for piece in self.bytes_of_ids()], dtype=np.uint16)


def is_unicode(text: str) -> bool:
    """Tell whether a text has ids: no bytes outside UTF-8, as a terminal or a command line passes them on."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def canonical_json(content: Mapping[str, object]) -> str:
    """Return the one JSON text of a content: sorted keys, no spaces."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256_of(content: Mapping[str, object]) -> str:
    """Return the sha256 of a content's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()
