"""A data set's tokenizer: trained on its text, bytes as they are, or an existing one.

To learn one, the first blocks are kept on disk, and a sample of them is drawn by a hash of the documents' names from up
to four times its size: a stream need not be read to its end, and a smaller corpus is sampled as a whole.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, final

from data_pipelines.progress import stage
from data_pipelines.sources.base import Document, Source
from data_pipelines.stages.blocks import BlockFacts
from data_pipelines.stages.pieces import read_items
from data_pipelines.stages.split import TRAIN, place_of
from data_pipelines.stages.stage import content_of
from data_pipelines.work_folder import WorkFolder
from lmtrain.errors import wrong
from lmtrain.tokenizers.base import CHAT_TOKENS, END_OF_TEXT, TOKENIZER_FILE, Tokenizer
from lmtrain.tokenizers.bpe import require_room, train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import find_tokenizer, load_tokenizer

HELD_FOR_LEARNING = 4  # times the sample, text waiting on the disk for its tokenizer


class TokenizerSpec(ABC):
    """The tokenizer to build; known, with its vocabulary size and special tokens, before there is any text.

    `sample_bytes` 0 needs none.
    """

    vocab_size: int
    special_tokens: Collection[str]
    sample_bytes: int = 0

    @abstractmethod
    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer; `texts` is about `sample_bytes` of training text to learn from."""

    @abstractmethod
    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the deciding facts besides the text."""


@final
class BytePairSpec(TokenizerSpec):
    """Byte pairs learned from the training text."""

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
        """
        self.special_tokens = (*special_tokens, *(CHAT_TOKENS if chat else ()))
        require_room(vocab_size, self.special_tokens if special_tokens else ())
        self.vocab_size, self.sample_bytes = vocab_size, sample_bytes

    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Train on the texts."""
        return train_byte_pairs(texts, vocab_size=self.vocab_size, special_tokens=tuple(self.special_tokens))

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            "kind": "bpe",
            "vocab_size": self.vocab_size,
            "special_tokens": list(self.special_tokens),
            "sample_bytes": self.sample_bytes,
        }


class FixedSpec(TokenizerSpec):
    """A tokenizer that learns nothing from the text."""

    tokenizer: Tokenizer

    @property
    def vocab_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # read when it is first needed
        """Return how many entries it has."""
        return self.tokenizer.vocab_size

    @property
    def special_tokens(self) -> Collection[str]:  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        """Return its special tokens."""
        return self.tokenizer.special_tokens

    def build(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer without a look at the texts."""
        del texts
        return self.tokenizer


@final
class ByteLevelSpec(FixedSpec):
    """Bytes as they are."""

    def __init__(self, *, vocab_size: int = 257, chat: bool = False) -> None:
        """Count 256 bytes, end-of-text, with `chat` ten tokens of conversations, and unused entries beyond."""
        self.tokenizer = ByteLevelTokenizer(vocab_size=vocab_size, chat=chat)
        self._chat = chat

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the settings."""
        parts: dict[str, Any] = {"kind": "byte_level", "vocab_size": self.vocab_size}
        return {**parts, "chat": True} if self._chat else parts


class FolderSpec(FixedSpec):
    """An existing `tokenizer.json`: of another data set here, or of a Hugging Face model."""

    def __init__(self, *, path: str, vocab_size: int | None = None, end_of_text: str | None = None) -> None:
        """Read the tokenizer at `path`, a folder or the file itself, when it is first needed.

        `vocab_size` None takes its own; `end_of_text` None the folder's word, or the usual names.
        """
        self._asked = vocab_size
        self._given = path
        self._end_of_text = end_of_text

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the file's sha256 and the settings."""
        path = self.path if self.path.is_file() else self.path / TOKENIZER_FILE
        return {
            "kind": "folder",
            "vocab_size": self.vocab_size,  # reads it, and refuses a folder without one
            "end_of_text": self._end_of_text,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }

    @cached_property
    def path(self) -> Path:
        """Return where the tokenizer is."""
        return Path(self._given)

    @cached_property
    def tokenizer(self) -> Tokenizer:  # pyright: ignore[reportIncompatibleVariableOverride]  # read when it is first needed
        """Return the tokenizer.

        Raises:
            ConfigurationError: Another vocabulary size was asked for.
            DataError: It is missing, damaged, or loses text.
        """
        tokenizer = load_tokenizer(self.path, end_of_text=self._end_of_text)
        if self._asked not in (None, tokenizer.vocab_size):
            size = f"{tokenizer.vocab_size}, as of the tokenizer in {self.path}"
            raise wrong("tokenizer.vocab_size", size, self._asked)
        return tokenizer


@final
class HuggingFaceSpec(FolderSpec):
    """The tokenizer of a Hugging Face model: a folder here, or a name on the hub."""

    def __init__(
        self, *, name: str, vocab_size: int | None = None, end_of_text: str | None = None, revision: str | None = None
    ) -> None:
        """Find `name` when it is first needed; the other settings as for a folder, `revision` a commit of the hub."""
        super().__init__(path=name, vocab_size=vocab_size, end_of_text=end_of_text)
        self._revision = revision

    @cached_property
    def path(self) -> Path:
        """Return the folder, or the download."""
        return find_tokenizer(self._given, revision=self._revision)


BYTES_PER_TOKEN = 8  # text has fewer: so much of it is more than a budget takes
WELL_USED = 0.9


def hold_blocks(
    blocks: Iterator[BlockFacts], *, sample_bytes: int, budget: int | None, source: Source
) -> list[BlockFacts]:
    """Take blocks until they have text enough to draw a sample from, or end; a budget of tokens bounds the reading."""
    wanted = HELD_FOR_LEARNING * sample_bytes
    if budget is not None:
        wanted = min(wanted, BYTES_PER_TOKEN * budget)
    held: list[BlockFacts] = []
    train_bytes = 0
    with stage("read") as progress:
        while train_bytes < wanted and (block := next(blocks, None)) is not None:
            held.append(block)
            train_bytes += block.train_bytes
            share = max(train_bytes / wanted, source.fraction_read or 0.0)
            progress.advance(documents=block.num_documents, text_bytes=block.text_bytes, fraction=share)
    return held


def learn(spec: TokenizerSpec, held: Sequence[BlockFacts], work: WorkFolder) -> Tokenizer:
    """Return the tokenizer of the held blocks' training text."""
    fraction = min(1.0, spec.sample_bytes / max(sum(block.train_bytes for block in held), 1))
    with stage("tokenizer") as progress:
        items = chain.from_iterable(read_items(work.text(block.number)) for block in held)
        train = (item for item in items if isinstance(item, Document) and item.split == TRAIN)
        sample = (item for item in train if fraction == 1 or place_of(f"sample {item.id}") < fraction)
        tokenizer = spec.build(content_of(document) for document in sample)
        num_used = sum(1 for piece in tokenizer.bytes_of_ids() if piece)
        progress.notes.append(f"{tokenizer.vocab_size:,} entries")
        if num_used < WELL_USED * tokenizer.vocab_size:
            progress.notes.append(f"only {num_used:,} in use: so little text needs no more, see tokenizer.vocab_size")
    return tokenizer
