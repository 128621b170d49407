"""Documents to ids: texts as they are, conversations with their special tokens and a loss mask beside them."""

import hashlib
import io
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.blocks import Block, num_bytes
from data_pipelines.stages.split import SPLITS
from data_pipelines.stages.stage import Item, LooksAtEach
from lmtrain.data.manifest import DTYPES
from lmtrain.data.row_shapes import REJECTED
from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import open_durably
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat import STYLES, render_batch, render_prompt
from lmtrain.tokenizers.conversation import ConversationError, Turn, read_conversation


@dataclass(frozen=True)
class Rendered:
    """Documents' ids back to back [N], their ends [num_documents], and their loss mask [N]; None: all do."""

    ids: NDArray[np.uint32]
    ends: NDArray[np.int64]
    loss_mask: NDArray[np.bool_] | None


@final
class WholeConversations(LooksAtEach):
    """Turns documents without a valid conversation into `Skipped`, by the broken rule; a pair holds two of them."""

    def __init__(self, *, style: str | None = None) -> None:
        """Ask for the rules of every style, and for those of `style` besides."""
        self._style = style

    def look_at(self, document: Document) -> Item:
        """Return the document, or its messages' broken rule."""
        if document.messages is None:
            return document
        try:
            self._require_written(read_conversation(document.messages))
            for other in both_of(document)[1:]:
                self._require_written(read_conversation(other.messages))
        except ConversationError as problem:
            return Skipped(document.id, f"messages: {problem.rule}")
        return document

    def fingerprint_parts(self) -> Mapping[str, Any]:
        """Return its name; the style follows from the tokenizer."""
        return {"stage": "whole_conversations"}

    def _require_written(self, turns: Sequence[Turn]) -> None:
        """Write a conversation and discard it: a style asks for its own rules as it writes."""
        for style in STYLES:
            if style.name == self._style:
                deque(style.write(turns), maxlen=0)


def render_documents(documents: Sequence[Document], tokenizer: Tokenizer, *, style: str | None = None) -> Rendered:
    """Encode documents, nothing added behind them; in conversations only the assistant's tokens carry loss.

    Raises:
        ConversationError: Messages unfit for `WholeConversations`.
        DataError: Conversations, and a tokenizer without the special tokens for them.
    """
    ids, ends = tokenizer.encode_batch_flat([document.text for document in documents if document.messages is None])
    conversations = [document.messages for document in documents if document.messages is not None]
    if not conversations:
        return Rendered(ids, ends, loss_mask=None)
    texts = iter(np.split(ids, ends[:-1]))
    rendered = iter(render_batch(tokenizer, conversations, style=style))
    pieces = [_all_with_loss(next(texts)) if document.messages is None else next(rendered) for document in documents]
    return Rendered(
        ids=np.concatenate([ids for ids, _ in pieces]),
        ends=np.cumsum([len(ids) for ids, _ in pieces], dtype=np.int64),
        loss_mask=np.concatenate([mask for _, mask in pieces]),
    )


def both_of(document: Document) -> list[Document]:
    """Return a pair's two conversations, the preferred one first; any other document alone."""
    last = document.messages[-1] if document.messages else {}
    if document.messages is None or REJECTED not in last:
        return [document]
    chosen = {name: value for name, value in last.items() if name != REJECTED}
    prompt = document.messages[:-1]
    return [replace(document, messages=(*prompt, *answer)) for answer in ((chosen,), last[REJECTED])]


def mask_prompt(mask: NDArray[np.bool_], document: Document, tokenizer: Tokenizer) -> None:
    """Take the loss off all but the last answer of a conversation, in place."""
    assert document.messages is not None
    mask[: len(render_prompt(tokenizer, document.messages[:-1]))] = False


def _all_with_loss(ids: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    return ids, np.ones(len(ids), dtype=np.bool_)


Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """Documents of one split: ids back to back, where each document ends, its bytes of text, its place in the block.

    `loss_mask` is 1 for each id with loss; None: all do.
    """

    ids: NDArray[np.unsignedinteger[Any]]
    ends: Counts
    text_bytes: Counts
    places: Counts
    loss_mask: NDArray[np.uint8] | None = None

    def up_to(self, place: int) -> "Encoded":
        """Return the documents up to and including a place in the block."""
        count = int(np.searchsorted(self.places, place, side="right"))
        stop = int(self.ends[count - 1]) if count else 0
        mask = None if self.loss_mask is None else self.loss_mask[:stop]
        return Encoded(self.ids[:stop], self.ends[:count], self.text_bytes[:count], self.places[:count], mask)


EncodedBlock = Mapping[str, Encoded]


def encode_block(block: Block, tokenizer: Tokenizer, *, dtype: str) -> EncodedBlock:
    """Encode a block's documents, split by split.

    Raises:
        DataError: The first document does not decode to its text: the tokenizer loses something.
    """
    places = {split: [place for place, of in enumerate(block.splits) if of == split] for split in SPLITS}
    return {
        split: _encode([block.documents[place] for place in chosen], chosen, tokenizer, dtype)
        for split, chosen in places.items()
        if chosen
    }


def with_end_of_text(rendered: Rendered, *, end_of_text_id: int) -> Rendered:
    """Return documents with end-of-text behind each; it carries loss behind a text, and none behind a conversation."""
    ends = rendered.ends + np.arange(1, len(rendered.ends) + 1)
    is_document = np.ones(len(rendered.ids) + len(ends), np.bool_)
    is_document[ends - 1] = False
    ids = np.full(len(is_document), end_of_text_id, np.uint32)
    ids[is_document] = rendered.ids
    if rendered.loss_mask is None:
        return Rendered(ids, ends, None)
    loss_mask = np.zeros(len(is_document), np.bool_)
    loss_mask[is_document] = rendered.loss_mask
    return Rendered(ids, ends, loss_mask)


def _encode(documents: Sequence[Document], places: list[int], tokenizer: Tokenizer, dtype: str) -> Encoded:
    pairs = [both_of(document) for document in documents]
    places = [place for place, both in zip(places, pairs, strict=True) for _ in both]
    is_answer = [len(both) > 1 for both in pairs for _ in both]
    documents = [one for both in pairs for one in both]
    rendered = render_documents(documents, tokenizer)
    _mask_prompts(rendered, documents, is_answer, tokenizer)
    if documents[0].messages is None:
        _require_lossless(documents[0], rendered.ids[: rendered.ends[0]], tokenizer)
    ended = with_end_of_text(rendered, end_of_text_id=tokenizer.end_of_text_id)
    if ended.loss_mask is None:
        text_bytes = np.array([num_bytes(document.text) for document in documents], np.int64)
        mask = None
    else:
        starts = np.concatenate([np.zeros(1, np.int64), ended.ends[:-1]])
        text_bytes = np.add.reduceat(tokenizer.token_bytes()[ended.ids], starts, dtype=np.int64)
        mask = ended.loss_mask.astype(np.uint8)
        is_text = np.array([document.messages is None for document in documents])
        mask[ended.ends[is_text] - 1] = 1
    return Encoded(ended.ids.astype(DTYPES[dtype]), ended.ends, text_bytes, np.array(places, np.int64), mask)


def _mask_prompts(
    rendered: Rendered, documents: Sequence[Document], is_answer: Sequence[bool], tokenizer: Tokenizer
) -> None:
    """Leave loss on the last answer alone, in the conversations of pairs."""
    if rendered.loss_mask is not None and any(is_answer):
        masks = np.split(rendered.loss_mask, rendered.ends[:-1])  # views
        for mask, document, is_one in zip(masks, documents, is_answer, strict=True):
            if is_one:
                mask_prompt(mask, document, tokenizer)


def _require_lossless(document: Document, ids: NDArray[np.uint32], tokenizer: Tokenizer) -> None:
    if tokenizer.decode_bytes(ids.tolist()) != document.text.encode():
        raise DataError(f"document {document.id} does not decode to its text: tokenizer= cannot write every text.")


def save_encoded(encoded: EncodedBlock, path: Path, *, text_sha256: str) -> None:
    """Write an encoded block, whole or not at all, with a digest of it and of its text."""
    buffer = io.BytesIO()
    for one in encoded.values():
        for array in (one.ids, one.ends, one.text_bytes, one.places, _or_empty(one.loss_mask)):
            np.save(buffer, array)
    content = buffer.getbuffer()
    header = {
        "text_sha256": text_sha256,
        "sha256": hashlib.sha256(content).hexdigest(),
        "splits": list(encoded),
        "has_loss_mask": [one.loss_mask is not None for one in encoded.values()],
    }
    with open_durably(path) as file:
        file.write(json.dumps(header).encode() + b"\n")
        file.write(content)


def load_encoded(path: Path) -> EncodedBlock:
    """Read an encoded block."""
    with path.open("rb") as file:
        header = foreign_json.parse(file.readline())
        encoded: dict[str, Encoded] = {}
        for split, has_loss_mask in zip(header["splits"], header["has_loss_mask"], strict=True):
            ids, ends, text_bytes, places, mask = (np.load(file, allow_pickle=False) for _ in range(5))
            encoded[split] = Encoded(ids, ends, text_bytes, places, mask if has_loss_mask else None)
    return encoded


def text_sha256_of(path: Path) -> str | None:
    """Return the digest of an encoded block's text, or None: missing, cut off or damaged."""
    try:
        with path.open("rb") as file:
            header: dict[str, Any] = foreign_json.parse(file.readline())
            digest = hashlib.sha256(file.read()).hexdigest()
    except (OSError, ValueError):
        return None
    return header.get("text_sha256") if digest == header.get("sha256") else None


def _or_empty(mask: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    return np.empty(0, np.uint8) if mask is None else mask
