"""One id per byte, then the special tokens: nothing to train, nothing unknown."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from lmtrain.errors import ConfigurationError
from lmtrain.storage.durable import write_durably
from lmtrain.tokenizers.base import (
    CHARACTER_OF_BYTE,
    CHAT_TOKENS,
    END_OF_TEXT,
    MAX_IDS,
    META_FILE,
    TOKENIZER_FILE,
    Tokenizer,
    sha256_of,
    unused_tokens,
)
from lmtrain.tokenizers.fast_encoder import FlatIds

NUM_BYTES = 256


@final
class ByteLevelTokenizer(Tokenizer):
    """Ids 0 to 255 are the bytes, 256 ends a text, then come those of conversations if asked for, then unused ones."""

    def __init__(self, *, vocab_size: int = NUM_BYTES + 1, chat: bool = False) -> None:
        """Hold 256 bytes, end-of-text, tokens of conversations with `chat`, and unused entries up to `vocab_size`."""
        named = (END_OF_TEXT, *(CHAT_TOKENS if chat else ()))
        if vocab_size < NUM_BYTES + len(named):
            which = f"{len(named)} special tokens (tokenizer.chat=true)" if chat else "end-of-text"
            rule = f"must hold 256 bytes and {which}, at least {NUM_BYTES + len(named)}"
            raise ConfigurationError(f"tokenizer.vocab_size: {rule}, got {vocab_size}.")
        if vocab_size > MAX_IDS:
            raise ConfigurationError(f"tokenizer.vocab_size: must be at most {MAX_IDS}, got {vocab_size}.")
        names = (*named, *unused_tokens(vocab_size - NUM_BYTES - len(named)))
        self.vocab_size, self.end_of_text_id = vocab_size, NUM_BYTES
        self.special_tokens = dict(zip(names, range(NUM_BYTES, vocab_size), strict=True))
        self._bytes = tuple(bytes([byte]) for byte in range(NUM_BYTES)) + (b"",) * len(names)
        self._meta = {"kind": "byte_level", "vocab_size": vocab_size, "end_of_text": END_OF_TEXT}
        self._meta |= {"chat": True} if chat else {}
        self.fingerprint = sha256_of(self._meta)

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of a text."""
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the UTF-8 bytes of each text."""
        return [self.encode(text) for text in texts]

    def encode_batch_flat(self, texts: Sequence[str]) -> FlatIds:
        """Return the UTF-8 bytes of all texts back to back, and where each text's end."""
        encoded = [text.encode() for text in texts]
        ids = np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.uint32)
        return ids, np.cumsum([len(piece) for piece in encoded], dtype=np.int64)

    def bytes_of_ids(self) -> tuple[bytes, ...]:
        """Return each byte for itself, and nothing for special tokens."""
        return self._bytes

    def save(self, folder: Path) -> None:
        """Write the meta file, and a `tokenizer.json` of the same as a BPE without merges."""
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / META_FILE, (json.dumps(self._meta, indent=1) + "\n").encode())
        write_durably(folder / TOKENIZER_FILE, (json.dumps(self._without_merges(), indent=1) + "\n").encode())

    def _without_merges(self) -> dict[str, Any]:
        specials = dict(self.special_tokens)
        bytes_to_characters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        vocabulary = {character: byte for byte, character in enumerate(CHARACTER_OF_BYTE)} | specials
        return {
            "version": "1.0",
            "added_tokens": [{"id": id_, "content": content, **flags} for content, id_ in specials.items()],
            "pre_tokenizer": bytes_to_characters,
            "decoder": bytes_to_characters,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
