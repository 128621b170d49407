"""Documents to ids: texts as they are, conversations with their special tokens and a loss mask next to them."""

import zipfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from data_pipelines.sources.base import Document, Item, Skipped
from data_pipelines.stages.blocks import num_bytes
from data_pipelines.stages.split import SPLITS, TRAIN
from data_pipelines.stages.stage import Stage
from lmtrain.data.manifest import DTYPES
from lmtrain.data.row_shapes import REJECTED
from lmtrain.storage.durable import open_durably
from lmtrain.tokenizers.base import Tokenizer, sha256_of
from lmtrain.tokenizers.chat import STYLES, render, render_batch, render_prompt
from lmtrain.tokenizers.conversation import ConversationError, read_conversation


@final
class WholeConversations(Stage):
    """Turns documents without a valid conversation into `Skipped`, by the broken rule; a pair holds two of them."""

    def __init__(self, *, style: str | None = None, tokenizer: Tokenizer | None = None) -> None:
        """Ask for the rules of every style, and for those of `style`, or of a tokenizer's chat template, besides."""
        self._style, self._tokenizer = style, tokenizer

    def look_at(self, document: Document) -> Item:
        """Return the document, or its messages' broken rule."""
        if document.messages is None:
            return document
        try:
            for each in both_of(document):
                self._require_written(each.messages)
        except ConversationError as problem:
            return Skipped(document.id, f"messages: {problem.rule}")
        return document

    def fingerprint_parts(self) -> Mapping[str, Any]:
        """Return its name, and the chat template; a style follows from the tokenizer."""
        template = self._tokenizer and self._tokenizer.template
        return {"stage": "whole_conversations"} | ({"template": sha256_of(asdict(template))} if template else {})

    def _require_written(self, messages: Any) -> None:
        """Write a conversation and discard it: a style or a template asks for its own rules as it writes."""
        turns = read_conversation(messages)
        if self._tokenizer is not None:
            render(self._tokenizer, messages)
        for style in STYLES:
            if style.name == self._style:
                deque(style.write(turns), maxlen=0)


def both_of(document: Document) -> list[Document]:
    """Return a pair's two conversations, the preferred one first; any other document alone."""
    last = document.messages[-1] if document.messages else {}
    if document.messages is None or REJECTED not in last:
        return [document]
    chosen = {name: value for name, value in last.items() if name != REJECTED}
    prompt = document.messages[:-1]
    return [replace(document, messages=(*prompt, *answer)) for answer in ((chosen,), last[REJECTED])]


@final
@dataclass(frozen=True)
class Encoded:
    """Documents as ids back to back, each with end-of-text [N], and where each ends [D].

    Of each document [D] its bytes of text, its place in its block and the number of its split. `loss_mask` [N] is 1 for
    each id with loss; None: all do. In conversations only the assistant's tokens carry loss.
    """

    ids: NDArray[np.unsignedinteger[Any]]
    ends: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    places: NDArray[np.int64]
    splits: NDArray[np.int64]
    loss_mask: NDArray[np.uint8] | None = None

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of each document's ids."""
        return np.diff(self.ends, prepend=0)

    def select(self, chosen: NDArray[np.bool_]) -> "Encoded":
        """Return some of the documents [D]."""
        lengths = self.lengths
        kept = np.repeat(chosen, lengths)
        return Encoded(
            self.ids[kept],
            np.cumsum(lengths[chosen]),
            self.text_bytes[chosen],
            self.places[chosen],
            self.splits[chosen],
            None if self.loss_mask is None else self.loss_mask[kept],
        )

    def save(self, path: Path, *, text_sha256: str) -> None:
        """Write the documents, whole or not at all, with a digest of their text."""
        arrays = {name: value for name, value in vars(self).items() if value is not None}
        with open_durably(path) as file:
            np.savez(file, text_sha256=np.array(text_sha256), **arrays)


def load_encoded(path: Path) -> Encoded:
    """Read encoded documents."""
    with np.load(path, allow_pickle=False) as arrays:
        return Encoded(**{name: arrays[name] for name in arrays.files if name != "text_sha256"})


def text_sha256_of(path: Path) -> str | None:
    """Return the digest of encoded documents' text, or None: missing, cut off or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                arrays[name]  # reading checks the sum of each
            return str(arrays["text_sha256"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def encode_documents(documents: Sequence[Document], tokenizer: Tokenizer, *, dtype: str = "uint32") -> Encoded:
    """Encode documents, both conversations of a pair one after the other.

    Raises:
        ConversationError: Messages unfit for `WholeConversations`.
        DataError: Conversations, and a tokenizer without the special tokens for them.
    """
    pairs = [both_of(document) for document in documents]
    places = np.repeat(np.arange(len(documents)), [len(both) for both in pairs])
    every = [one for both in pairs for one in both]
    texts = [document.text for document in every if document.messages is None]
    end = tokenizer.end_of_text_id
    if len(texts) == len(every):
        ids, ends = tokenizer.encode_batch_flat(texts)
        ids, ends, mask = np.insert(ids, ends, end), ends + np.arange(1, len(ends) + 1), None
        text_bytes = np.array([num_bytes(text) for text in texts], np.int64)
    else:
        pieces = _with_loss(pairs, tokenizer)
        ids = np.concatenate([np.append(ids, np.uint32(end)) for ids, _ in pieces])
        mask = np.concatenate([np.append(mask, is_text) for (_, mask), is_text in zip(
            pieces, (document.messages is None for document in every), strict=True)]).astype(np.uint8)  # fmt: skip
        ends = np.cumsum([len(ids) + 1 for ids, _ in pieces], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        text_bytes = np.add.reduceat(tokenizer.token_bytes()[ids], starts, dtype=np.int64)
    splits = np.array([SPLITS.index(document.split or TRAIN) for document in every], np.int64)
    return Encoded(ids.astype(DTYPES[dtype]), ends, text_bytes, places, splits, mask)


def _with_loss(
    pairs: Sequence[Sequence[Document]], tokenizer: Tokenizer
) -> list[tuple[NDArray[np.uint32], NDArray[np.bool_]]]:
    """Return the ids and the loss mask of each document; of a pair, only the last answers carry loss."""
    every = [one for both in pairs for one in both]
    texts = [document.text for document in every if document.messages is None]
    ids, ends = tokenizer.encode_batch_flat(texts)
    encoded = iter(np.split(ids, ends[:-1]))
    rendered = iter(render_batch(tokenizer, [one.messages for one in every if one.messages is not None]))
    pieces: list[tuple[NDArray[np.uint32], NDArray[np.bool_]]] = []
    for both in pairs:
        for one in both:
            if one.messages is None:
                ids = next(encoded)
                pieces.append((ids, np.ones(len(ids), np.bool_)))
                continue
            ids, mask = next(rendered)
            if len(both) > 1:
                mask[: len(render_prompt(tokenizer, one.messages[:-1]))] = False
            pieces.append((ids, mask))
    return pieces
