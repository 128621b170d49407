"""A data set's tokenizer: trained on its text, bytes as they are, or an existing one.

To learn one, the first blocks are kept on disk, and a sample of them is drawn by a hash of the documents' names from up
to four times its size: a stream need not be read to its end, and a smaller corpus is sampled as a whole.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, final

from data_pipelines.progress import stage
from data_pipelines.sources.base import Source
from data_pipelines.stages.blocks import Block, LeftOut, load_block, num_bytes
from data_pipelines.stages.split import TRAIN, place_of
from data_pipelines.stages.stage import content_of
from data_pipelines.work_folder import WorkFolder
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.base import CHAT_TOKENS, END_OF_TEXT, TOKENIZER_FILE, Tokenizer
from lmtrain.tokenizers.bpe import require_room, train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import find_tokenizer, load_tokenizer

HELD_FOR_LEARNING = 4  # times the sample, text waiting on the disk for its tokenizer


class TokenizerSpec(ABC):
    """The tokenizer to build; known, with its vocabulary size, before there is any text.

    `sample_bytes` 0 needs none. `takes_chat`: its setting `chat` adds the special tokens of conversations.
    """

    sample_bytes: int = 0
    takes_chat: bool = False

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Return how many entries the tokenizer will have."""

    @property
    @abstractmethod
    def special_tokens(self) -> Collection[str]:
        """Return the future tokenizer's special tokens."""

    @abstractmethod
    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer; `texts` is about `sample_bytes` of training text to learn from."""

    @abstractmethod
    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the deciding facts besides the text."""


@final
class BytePairSpec(TokenizerSpec):
    """Byte pairs learned from the training text."""

    takes_chat = True

    def __init__(
        self,
        *,
        vocab_size: int,
        special_tokens: Sequence[str] = (END_OF_TEXT,),
        chat: bool = False,
        sample_bytes: int = 256_000_000,
    ) -> None:
        """Learn `vocab_size` entries, special tokens included; the first of those ends a document.

        `chat` adds the ten special tokens of conversations.

        Raises:
            ConfigurationError: The vocabulary cannot hold the bytes and the special tokens.
        """
        self._special_tokens = (*special_tokens, *(CHAT_TOKENS if chat else ()))
        require_room(vocab_size, self._special_tokens if special_tokens else ())
        self._vocab_size = vocab_size
        self.sample_bytes = sample_bytes

    @property
    def vocab_size(self) -> int:
        """Return the size asked for, met exactly."""
        return self._vocab_size

    @property
    def special_tokens(self) -> Collection[str]:
        """Return those asked for."""
        return self._special_tokens

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

    takes_chat = True

    def __init__(self, *, vocab_size: int = 257, chat: bool = False) -> None:
        """Count 256 bytes, end-of-text, with `chat` ten tokens of conversations, and unused entries beyond.

        Raises:
            ConfigurationError: No room for them.
        """
        self._tokenizer = ByteLevelTokenizer(vocab_size=vocab_size, chat=chat)
        self._chat = chat

    @property
    def vocab_size(self) -> int:
        """Return the size asked for."""
        return self._tokenizer.vocab_size

    @property
    def special_tokens(self) -> Collection[str]:
        """Return end-of-text, and those of conversations where they are asked for."""
        return self._tokenizer.special_tokens

    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer without a look at the texts."""
        del texts
        return self._tokenizer

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the settings."""
        parts: dict[str, Any] = {"kind": "byte_level", "vocab_size": self.vocab_size}
        return {**parts, "chat": True} if self._chat else parts


@final
class FolderSpec(TokenizerSpec):
    """An existing `tokenizer.json`: of another data set here, or of a Hugging Face model."""

    def __init__(self, *, path: str, vocab_size: int | None = None, end_of_text: str | None = None) -> None:
        """Read the tokenizer at `path`, a folder or the file itself.

        `vocab_size` None takes its own; `end_of_text` None the folder's word, or the usual names.
        """
        self._asked = vocab_size
        self._path = Path(path)
        self._end_of_text = end_of_text

    @property
    def vocab_size(self) -> int:
        """Return how many entries it has.

        Raises:
            ConfigurationError: Another number was asked for.
            DataError: It is missing, damaged, or loses text.
        """
        return self._tokenizer.vocab_size

    @property
    def special_tokens(self) -> Collection[str]:
        """Return those of the file."""
        return self._tokenizer.special_tokens

    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer without a look at the texts."""
        del texts
        return self._tokenizer

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the file's sha256 and the settings."""
        path = self._path if self._path.is_file() else self._path / TOKENIZER_FILE
        if not path.is_file():
            raise DataError(f"tokenizer.path={self._path} has no {TOKENIZER_FILE}; name a folder that has one.")
        return {
            "kind": "folder",
            "vocab_size": self.vocab_size,
            "end_of_text": self._end_of_text,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = load_tokenizer(self._path, end_of_text=self._end_of_text)
        if self._asked not in (None, tokenizer.vocab_size):
            msg = f"tokenizer.vocab_size={self._asked} is not the size of the tokenizer in {self._path}"
            raise ConfigurationError(f"{msg}; valid: {tokenizer.vocab_size}.")
        return tokenizer


@final
class HuggingFaceSpec(TokenizerSpec):
    """The tokenizer of a Hugging Face model: a folder here, or a name on the hub."""

    def __init__(
        self, *, name: str, vocab_size: int | None = None, end_of_text: str | None = None, revision: str | None = None
    ) -> None:
        """Find `name` when it is first needed; the other settings as for a folder, `revision` a commit of the hub."""
        self._name = name
        self._revision = revision
        self._vocab_size = vocab_size
        self._end_of_text = end_of_text

    @property
    def vocab_size(self) -> int:
        """Return how many entries it has."""
        return self._found.vocab_size

    @property
    def special_tokens(self) -> Collection[str]:
        """Return those of the file."""
        return self._found.special_tokens

    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer without a look at the texts."""
        return self._found.build(texts)

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return those of the found folder, at any place."""
        return self._found.fingerprint_parts()

    @cached_property
    def _found(self) -> FolderSpec:
        path = find_tokenizer(self._name, revision=self._revision)
        return FolderSpec(path=str(path), vocab_size=self._vocab_size, end_of_text=self._end_of_text)


BYTES_PER_TOKEN = 8  # text has fewer: so much of it is more than a budget takes
WELL_USED = 0.9


@final
@dataclass(frozen=True)
class Held:
    """Blocks on the disk: the omissions of each, and the bytes of their training text."""

    left_out: Mapping[int, LeftOut]
    train_bytes: int

    def texts(self, work: WorkFolder) -> Iterator[tuple[str, str]]:
        """Yield each training document's name and text."""
        return chain.from_iterable(_train_texts(load_block(work.raw(number))) for number in self.left_out)

    def again(self, work: WorkFolder) -> Iterator[Block]:
        """Yield the blocks, and free their room."""
        for number, left_out in self.left_out.items():
            block = load_block(work.raw(number), number=number, left_out=left_out)
            work.raw(number).unlink()
            yield block


def hold_blocks(
    blocks: Iterator[Block],
    work: WorkFolder,
    *,
    sample_bytes: int,
    budget: int | None,
    source: Source | None = None,
) -> Held:
    """Write blocks to the disk until they have text enough to draw a sample from, or end.

    A budget of tokens bounds the reading beyond it. The progress is that of the sample, or of a smaller `source`.
    """
    wanted = (
        HELD_FOR_LEARNING * sample_bytes
        if budget is None
        else min(HELD_FOR_LEARNING * sample_bytes, BYTES_PER_TOKEN * budget)
    )
    left_out: dict[int, LeftOut] = {}
    train_bytes = 0
    with stage("read") as progress:
        while train_bytes < wanted and (block := next(blocks, None)) is not None:
            block.save(work.raw(block.number))
            left_out[block.number] = block.left_out
            train_bytes += sum(num_bytes(text) for _, text in _train_texts(block))
            read_bytes = sum(num_bytes(content_of(document)) for document in block.documents)
            share = max(train_bytes / wanted, (source and source.fraction_read) or 0.0)
            progress.advance(documents=len(block.documents), text_bytes=read_bytes, fraction=share)
    return Held(left_out, train_bytes)


def learn(spec: TokenizerSpec, held: Held, work: WorkFolder) -> Tokenizer:
    """Return the tokenizer of the held blocks' training text."""
    fraction = min(1.0, spec.sample_bytes / max(held.train_bytes, 1))
    with stage("tokenizer") as progress:
        sample = (text for name, text in held.texts(work) if fraction == 1 or place_of(f"sample {name}") < fraction)
        tokenizer = spec.build(sample)
        num_used = sum(1 for piece in tokenizer.bytes_of_ids() if piece)
        progress.notes.append(f"{tokenizer.vocab_size:,} entries")
        if num_used < WELL_USED * tokenizer.vocab_size:
            progress.notes.append(f"only {num_used:,} in use: so little text needs no more, see tokenizer.vocab_size")
    return tokenizer


def _train_texts(block: Block) -> Iterator[tuple[str, str]]:
    for split, document in zip(block.splits, block.documents, strict=True):
        if split == TRAIN:
            yield document.id, content_of(document)
