"""The interface of tokenizers: text to ids and back through bytes, and the number of bytes behind each id."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from lmtrain.errors import DataError
from lmtrain.storage.damage import one_line

TOKENIZER_FILE = "tokenizer.json"
META_FILE = "tokenizer.meta.json"
MAX_IDS = 1 << 24  # sixty times the largest in use: each id takes memory

END_OF_TEXT = "<|end_of_text|>"
CHAT_TOKENS = (
    "<|system_start|>",
    "<|system_end|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_result_start|>",
    "<|tool_result_end|>",
)
_UNUSED = "<|unused_"

# The printable character for each byte in a byte-level `tokenizer.json`. GPT-2's table (https://github.com/openai/gpt-2):
# printable Latin-1 stands for itself, the other bytes for U+0100 onward.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
CHARACTER_OF_BYTE = tuple(chr(byte) if byte in _PRINTABLE else chr(256 + _OTHERS.index(byte)) for byte in range(256))
BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(CHARACTER_OF_BYTE)}

FlatIds = tuple[NDArray[np.uint32], NDArray[np.int64]]  # the ids of many texts back to back, and where each text's end


@final
@dataclass(frozen=True)
class ChatTemplate:
    """A chat template of transformers, and its tokens at the beginning and the end where it has them."""

    text: str
    begin: str = ""
    end: str = ""

    def __post_init__(self) -> None:
        """Refuse parts that are not text: they may come from any file."""
        if not all(isinstance(part, str) for part in vars(self).values()):
            raise TypeError("a chat template that is not text")


class Tokenizer(ABC):
    """Text to ids and back. Special tokens have ids, but no typed text ever becomes one.

    `vocab_size` counts the entries, special tokens included; every id is below it. `end_of_text_id` ends a document,
    `special_tokens` are ids by name, `fingerprint` is the sha256 of everything that decides the ids, in hexadecimal.
    `template` writes conversations where no style's special tokens are there to do so; None: nothing does.
    """

    template: ChatTemplate | None = None

    vocab_size: int
    end_of_text_id: int
    special_tokens: Mapping[str, int]
    fingerprint: str

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; no special token is added or recognised."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, on as many threads as the tokenizer has."""

    @abstractmethod
    def bytes_of_ids(self) -> tuple[bytes, ...]:
        """Return the bytes of each id; special tokens have none."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`, which other tools read too, and `tokenizer.meta.json` into a folder."""

    def keep_words(self, num_words: int) -> None:
        """Cache the ids of up to `num_words` words per thread, where the tokenizer has a cache; 0 turns it off."""
        del num_words

    def encode_batch_flat(self, texts: Sequence[str]) -> FlatIds:
        """Return the ids of all texts back to back [N], and where each text's end [num_texts]: the fast way."""
        return flatten(self.encode_batch(texts))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of the ids; special tokens vanish, and so do ids beyond the vocabulary."""
        table = self.bytes_of_ids()
        return b"".join([table[token] for token in ids if token < len(table)])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; bytes that are not UTF-8 (half a character) become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> NDArray[np.uint16]:
        """Return the number of bytes of each id, 0 for special tokens: [V]."""
        return np.array([len(piece) for piece in self.bytes_of_ids()], dtype=np.uint16)


def flatten(encoded: Sequence[Sequence[int]]) -> FlatIds:
    """Return the ids of all texts back to back, and where each text's end."""
    ends = np.cumsum([len(ids) for ids in encoded], dtype=np.int64)
    return np.fromiter(chain.from_iterable(encoded), dtype=np.uint32, count=int(ends[-1]) if len(ends) else 0), ends


def bytes_of(token: str) -> bytes:
    """Return the bytes of an entry of a byte-level vocabulary. KeyError where it is not byte-level."""
    return bytes(map(BYTE_OF_CHARACTER.__getitem__, token))


def unused_tokens(num_tokens: int) -> tuple[str, ...]:
    """Return names of special tokens that fill a vocabulary up to its size."""
    return tuple(f"{_UNUSED}{index}|>" for index in range(num_tokens))


def is_unused(name: str) -> bool:
    """Return whether a special token only fills the vocabulary."""
    return name.startswith(_UNUSED)


def require_text(key: str, text: object) -> None:
    """Check that a value is text that can be encoded."""
    if not isinstance(text, str) or not is_unicode(text):
        raise DataError(f"{key}: must be UTF-8 text, got {text!r:.40}.")


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded: it has no lone surrogates, as a terminal passes on for bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sha256_of(content: Mapping[str, object]) -> str:
    """Return the sha256 of a content's canonical JSON (sorted keys, no spaces), in hexadecimal."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


@contextmanager
def reject_failures(what: str, *, fix: str = "use another tokenizer") -> Generator[None]:
    """Turn an exception of a library in Rust, which has no narrow ones, into a DataError of one line about `what`.

    And a panic, which passes `except Exception`. The expressions of a `tokenizer.json` may be hostile: Oniguruma gives
    up on a match after ten million steps back, a fifth of a second, and `tokenizers` panics then.
    """
    try:
        yield
    except DataError:
        raise
    except BaseException as problem:
        # The panic's module, pyo3_runtime, cannot be imported.
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {one_line(problem)}; {fix}.") from None
