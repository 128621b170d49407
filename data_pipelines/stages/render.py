"""Documents to ids: texts as they are, conversations with their special tokens and a loss mask beside them."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from data_pipelines.sources.base import REJECTED, Document, Skipped
from data_pipelines.stages.stage import Item, LooksAtEach
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat import render_batch, render_prompt
from lmtrain.tokenizers.chat_styles import STYLES
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
