"""Byte-level byte-pair encoding through the `tokenizers` library, trained here or read from a `tokenizer.json`.

Texts are cut by the split expression of GPT-4 (https://github.com/openai/tiktoken, cl100k_base), but with numbers in
groups of at most two digits: in a small vocabulary entries for three digits are seldom worth their place.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, final

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import refuse_damage
from lmtrain.storage.durable import write_durably
from lmtrain.tokenizers.base import (
    CHARACTER_OF_BYTE,
    END_OF_TEXT,
    MAX_IDS,
    META_FILE,
    TOKENIZER_FILE,
    FlatIds,
    Tokenizer,
    reject_failures,
    sha256_of,
    unused_tokens,
)
from lmtrain.tokenizers.fast_encoder import HARD_TEXTS, FastEncoder
from lmtrain.tokenizers.lossless import FIX, SPACE_SYMBOL, cut_at, make_lossless

SPLIT_EXPRESSION = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
MIN_PAIR_COUNT = 2
FAILED = "tokenizer.json cannot encode this text"


@final
class BytePairTokenizer(Tokenizer):
    """Byte pairs merged by frequency; special tokens have ids outside every text's."""

    def __init__(self, tokenizer_json: str, *, end_of_text: str = END_OF_TEXT) -> None:
        """Read a `tokenizer.json` text, with its special token `end_of_text` at a document's end."""
        content = read_content(tokenizer_json)
        self._lossless = make_lossless(content)
        self.left_out = self._lossless.left_out  # steps of the file that change the form of a text
        is_as_it_was = self._lossless.content == content
        with reject_failures("tokenizer.json is damaged or not a tokenizer", fix="restore or rebuild it"):
            read = tokenizer_json if is_as_it_was else json.dumps(self._lossless.content)
            self._tokenizer = tokenizers.Tokenizer.from_str(read)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # the typed text of a special token stays text
        added = self._tokenizer.get_added_tokens_decoder().items()
        self.special_tokens = {token.content: id_ for id_, token in added if token.special}
        if end_of_text not in self.special_tokens:
            known = ", ".join(sorted(self.special_tokens)) or "none"
            rule = f"must be a special token of this tokenizer ({known})"
            raise DataError(f"tokenizer.end_of_text: {rule}, got {end_of_text}.")
        self._end_of_text, self.end_of_text_id = end_of_text, self.special_tokens[end_of_text]
        try:
            self.vocab_size = len(self.bytes_of_ids())  # one more than the largest id
        except KeyError as character:
            raise DataError(f"tokenizer.json is not byte-level: its entry {character} is not a byte. {FIX}") from None
        self._require_text_back()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self._guarded(text, self._encode_plain(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, on all cores."""
        with reject_failures(FAILED):
            encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [self._guarded(text, encoding.ids) for text, encoding in zip(texts, encoded, strict=True)]

    def keep_words(self, num_words: int) -> None:
        """Cache the ids of up to `num_words` words per thread; 10,000 unless set."""
        if isinstance(self._tokenizer.model, models.BPE):
            self._tokenizer.model._resize_cache(num_words)  # noqa: SLF001

    def encode_batch_flat(self, texts: Sequence[str]) -> FlatIds:
        """Return the ids of all texts back to back, and where each text's end."""
        return self._fast_encoder(texts)

    def bytes_of_ids(self) -> tuple[bytes, ...]:
        """Return the bytes of each id; special tokens and gaps in the vocabulary stand for none."""
        return self._bytes_of_ids

    def save(self, folder: Path) -> None:
        """Write both files."""
        folder.mkdir(parents=True, exist_ok=True)
        meta: dict[str, Any] = {"kind": "bpe", "vocab_size": self.vocab_size, "end_of_text": self._end_of_text}
        meta |= {"chat_template": asdict(self.template)} if self.template else {}
        write_durably(folder / META_FILE, (json.dumps(meta, indent=1) + "\n").encode())
        write_durably(folder / TOKENIZER_FILE, (f"{json.dumps(self._lossless.content, ensure_ascii=False)}\n").encode())

    @cached_property
    def _fast_encoder(self) -> FastEncoder:
        return FastEncoder(
            self._tokenizer.to_str(),
            reference=self.encode_batch,
            special_tokens=self.special_tokens,
            odd_characters=SPACE_SYMBOL if self._lossless.has_byte_fallback else "",
        )

    @cached_property
    def fingerprint(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # computed when first asked for
        """Return the sha256 of the canonical `tokenizer.json`."""
        return sha256_of(self._lossless.content)

    @cached_property
    def _bytes_of_ids(self) -> tuple[bytes, ...]:
        added_tokens = self._tokenizer.get_added_tokens_decoder().items()
        added = {
            id_: b"" if token.special else self._lossless.bytes_of_added(token.content) for id_, token in added_tokens
        }
        vocabulary = {id_: token for token, id_ in self._tokenizer.get_vocab().items()}
        learned = {id_: self._lossless.bytes_of_entry(token) for id_, token in vocabulary.items() if id_ not in added}
        pieces = learned | added
        if max(pieces) >= MAX_IDS:
            raise DataError(f"tokenizer.json has the id {max(pieces):,}; ids end below {MAX_IDS:,} here. Rebuild it.")
        return tuple(pieces.get(id_, b"") for id_ in range(max(pieces) + 1))

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special_tokens.values())

    @cached_property
    def _special_texts(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(text) for text in sorted(self.special_tokens, key=len, reverse=True)))

    def _encode_plain(self, text: str) -> list[int]:
        with reject_failures(FAILED):
            return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _guarded(self, text: str, ids: list[int]) -> list[int]:
        """Return the ids of a text, encoded again where they hold a typed special token, or U+2581 as a space."""
        if self._lossless.has_byte_fallback and SPACE_SYMBOL in text:
            vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
            as_bytes = [vocabulary[f"<0x{byte:02X}>"] for byte in SPACE_SYMBOL.encode()]
            parts = [self.encode(part) for part in text.split(SPACE_SYMBOL)]
            return [*parts[0], *(id_ for part in parts[1:] for id_ in (*as_bytes, *part))]
        if self._special_ids.isdisjoint(ids):
            return ids
        return cut_at(self._special_texts, text, encode=self._encode_plain)

    def _require_text_back(self) -> None:
        probe = "\n".join([*HARD_TEXTS, *self.special_tokens, "<0x41>", SPACE_SYMBOL])
        ids = self.encode(probe)
        if self.decode_bytes(ids) != probe.encode():
            raise DataError(f"tokenizer.json does not decode a text to itself. {FIX}")
        if not self._special_ids.isdisjoint(ids):
            raise DataError(f"tokenizer.json encodes the typed text of a special token as that token. {FIX}")


def train_byte_pairs(
    documents: Iterable[str], *, vocab_size: int, special_tokens: Sequence[str] = (END_OF_TEXT,)
) -> BytePairTokenizer:
    """Train on texts a tokenizer of exactly `vocab_size` entries: special tokens, 256 bytes, merges.

    The first special token ends a document. Where the texts have too few repeated pairs, unused special tokens fill
    the vocabulary.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(SPLIT_EXPRESSION), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_PAIR_COUNT,
        special_tokens=list(special_tokens),
        initial_alphabet=list(CHARACTER_OF_BYTE),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens(list(unused_tokens(vocab_size - tokenizer.get_vocab_size())))
    return BytePairTokenizer(tokenizer.to_str(), end_of_text=special_tokens[0])


def require_room(vocab_size: int, special_tokens: Sequence[str]) -> None:
    """Refuse a vocabulary without room for the bytes and the special tokens."""
    smallest = len(CHARACTER_OF_BYTE) + len(special_tokens)
    if not special_tokens:
        raise ConfigurationError(
            f"tokenizer.special_tokens: must have one that ends a document, got []; usual: ['{END_OF_TEXT}']."
        )
    if vocab_size < smallest:
        rule = f"must hold 256 bytes and {len(special_tokens)} special tokens, at least {smallest}"
        raise ConfigurationError(f"tokenizer.vocab_size: {rule}, got {vocab_size}.")


def read_content(tokenizer_json: str) -> dict[str, Any]:
    """Return the tokenizer of a `tokenizer.json` text."""
    with refuse_damage("tokenizer.json"):
        content = foreign_json.parse(tokenizer_json)
        if not isinstance(content, dict) or "model" not in content:
            raise DataError("tokenizer.json is not a tokenizer: it has no model; restore or rebuild it.")
        return content
