"""Conversations to ids and loss mask: `render`, and `render_prompt` for a conversation to be continued by a model.

Special tokens are written by their ids, texts are encoded as texts, so nothing typed becomes a special token. Only the
assistant's words, their end token included, carry loss.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat_styles import STYLES, ChatStyle, Segment, styles_of
from lmtrain.tokenizers.conversation import read_conversation

Messages = Sequence[Mapping[str, Any]]
IdsAndMask = tuple[NDArray[np.uint32], NDArray[np.bool_]]


def chat_style(tokenizer: Tokenizer, name: str | None = None) -> ChatStyle:
    """Return the style of a tokenizer's special tokens; `name` asks for one.

    Raises:
        ConfigurationError: There is no such style.
        DataError: The tokenizer has not the special tokens.
    """
    names = [style.name for style in STYLES]
    if name is not None and name not in names:
        raise ConfigurationError(f"chat style {name} does not exist; valid: {', '.join(names)}.{suggest(name, names)}")
    for style in styles_of(tokenizer.special_tokens):
        if name in (None, style.name):
            return style
    wanted = f"of the {name} style" if name else f"of a chat style ({', '.join(names)})"
    msg = f"the tokenizer has not the special tokens {wanted}"
    raise DataError(f"{msg}; train one with tokenizer.chat=true, or take one of a chat model.")


def render(tokenizer: Tokenizer, messages: Messages, *, style: str | None = None) -> IdsAndMask:
    """Return a conversation's ids [N], and their loss mask [N].

    Raises:
        ConversationError: The messages are no conversation; it names the message, its role and the rule.
        DataError: The tokenizer has no special tokens for it.
    """
    return render_batch(tokenizer, [messages], style=style)[0]


def render_batch(
    tokenizer: Tokenizer, conversations: Sequence[Messages], *, style: str | None = None
) -> list[IdsAndMask]:
    """Return each conversation's ids and loss mask; their texts are encoded in one go."""
    chosen = chat_style(tokenizer, style)
    return _encode(tokenizer, [_joined(chosen.write(read_conversation(messages))) for messages in conversations])


def render_prompt(tokenizer: Tokenizer, messages: Messages, *, style: str | None = None) -> NDArray[np.uint32]:
    """Return the ids of a conversation with a user's or a tool's last turn, up to the start of the answer."""
    chosen = chat_style(tokenizer, style)
    turns = read_conversation(messages, for_answer=True)
    return _encode(tokenizer, [_joined([*chosen.write(turns), *chosen.answer])])[0][0]


def encode_segments(tokenizer: Tokenizer, segments: Iterable[Segment]) -> list[int]:
    """Return the ids of a part of a conversation, as the whole conversation's ids have them."""
    return _encode(tokenizer, [_joined(segments)])[0][0].tolist()


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments with neighbouring texts of one kind made one, as a template's text would be."""
    joined: list[Segment] = []
    for (is_special, has_loss), group in groupby(segments, key=lambda one: (one.is_special, one.has_loss)):
        texts = [segment.text for segment in group]
        texts = texts if is_special else ["".join(texts)]
        joined += [Segment(text, is_special=is_special, has_loss=has_loss) for text in texts if text]
    return joined


def _encode(tokenizer: Tokenizer, conversations: Sequence[Sequence[Segment]]) -> list[IdsAndMask]:
    specials = tokenizer.special_tokens
    texts = [segment.text for segments in conversations for segment in segments if not segment.is_special]
    ids, ends = tokenizer.encode_batch_flat(texts)
    encoded = iter(np.split(ids, ends[:-1]))
    return [_assemble(segments, specials, encoded) for segments in conversations]


def _assemble(
    segments: Sequence[Segment], specials: Mapping[str, int], encoded: Iterator[NDArray[np.uint32]]
) -> IdsAndMask:
    pieces = [
        np.array([specials[segment.text]], dtype=np.uint32) if segment.is_special else next(encoded)
        for segment in segments
    ]
    masks = [np.full(len(piece), segment.has_loss) for piece, segment in zip(pieces, segments, strict=True)]
    return np.concatenate(pieces), np.concatenate(masks)
