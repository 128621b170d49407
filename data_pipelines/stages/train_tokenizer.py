"""Which tokenizer a data set gets: trained on its text, bytes as they are, or one that exists already."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.base import END_OF_TEXT, TOKENIZER_FILE, Tokenizer
from lmtrain.tokenizers.bpe import require_room, train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import load_tokenizer


class TokenizerSpec(ABC):
    """What is to be built; known, with its vocabulary size, before there is any text.

    `sample_bytes` 0 needs none.
    """

    vocab_size: int
    sample_bytes: int = 0

    @abstractmethod
    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer; `texts` is about `sample_bytes` of training text to learn from."""

    @abstractmethod
    def fingerprint_parts(self) -> dict[str, Any]:
        """Return everything that decides the result, besides the text."""


@final
class BytePairSpec(TokenizerSpec):
    """Byte pairs learned from the training text."""

    def __init__(
        self, *, vocab_size: int, special_tokens: Sequence[str] = (END_OF_TEXT,), sample_bytes: int = 256_000_000
    ) -> None:
        """Learn `vocab_size` entries, special tokens included, the first of which ends a document.

        Raises:
            ConfigurationError: The vocabulary cannot hold the bytes and the special tokens.
        """
        require_room(vocab_size, special_tokens)
        self.vocab_size = vocab_size
        self.sample_bytes = sample_bytes
        self._special_tokens = tuple(special_tokens)

    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Train on the texts."""
        return train_byte_pairs(texts, vocab_size=self.vocab_size, special_tokens=self._special_tokens)

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            "kind": "bpe",
            "vocab_size": self.vocab_size,
            "special_tokens": list(self._special_tokens),
            "sample_bytes": self.sample_bytes,
        }


@final
class ByteLevelSpec(TokenizerSpec):
    """Bytes as they are."""

    def __init__(self, *, vocab_size: int = 257) -> None:
        """Count 256 bytes, end-of-text, and unused entries beyond.

        Raises:
            ConfigurationError: Fewer than 257 entries.
        """
        self.vocab_size = ByteLevelTokenizer(vocab_size=vocab_size).vocab_size

    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer without a look at the texts."""
        del texts
        return ByteLevelTokenizer(vocab_size=self.vocab_size)

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the settings."""
        return {"kind": "byte_level", "vocab_size": self.vocab_size}


@final
class FolderSpec(TokenizerSpec):
    """A byte-level `tokenizer.json` that exists: of another data set here, or of a Hugging Face model."""

    def __init__(self, *, path: str, vocab_size: int, end_of_text: str | None = None) -> None:
        """Read the tokenizer in a folder; `end_of_text` None takes the folder's word, or the usual names."""
        self.vocab_size = vocab_size
        self._path = Path(path)
        self._end_of_text = end_of_text

    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Read the tokenizer.

        Raises:
            ConfigurationError: It has another vocabulary size.
            DataError: It is missing, damaged, or not byte-level.
        """
        del texts
        tokenizer = load_tokenizer(self._path, end_of_text=self._end_of_text)
        if tokenizer.vocab_size != self.vocab_size:
            msg = f"tokenizer.vocab_size={self.vocab_size} is not the size of the tokenizer in {self._path}"
            raise ConfigurationError(f"{msg}; valid: {tokenizer.vocab_size}.")
        return tokenizer

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the file's sha256 and the settings."""
        path = self._path / TOKENIZER_FILE
        if not path.is_file():
            raise DataError(f"tokenizer.path={self._path} has no {TOKENIZER_FILE}; name a folder that has one.")
        return {
            "kind": "folder",
            "vocab_size": self.vocab_size,
            "end_of_text": self._end_of_text,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
