"""Conversations as ids and a loss mask, style by style: `render`, and `render_prompt` up to the start of an answer.

Special tokens are written by their ids and texts are encoded as texts, so nothing typed becomes a special token. Only
the assistant's tokens, the end of its turn included, carry loss.

- lmtrain: our own, with a special token for each role's start and end.
- chatml: OpenAI's, as Qwen writes it (https://huggingface.co/Qwen/Qwen2.5-7B-Instruct, chat_template).
- llama3: Meta's (https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-3).
- inst: Mistral's with `[INST]` as a special token (https://huggingface.co/mistralai/Mistral-Nemo-Instruct-2407).

A tokenizer without the special tokens of a style writes in its own chat template, where it has one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmtrain.errors import DataError
from lmtrain.tokenizers.base import CHAT_TOKENS, Tokenizer
from lmtrain.tokenizers.conversation import (
    ASSISTANT,
    SYSTEM,
    TOOL,
    USER,
    ConversationError,
    Turn,
    read_conversation,
)
from lmtrain.tokenizers.templates import TemplateWriter


@dataclass(frozen=True, slots=True)
class Segment:
    """A special token or a text, and whether it carries loss."""

    text: str
    is_special: bool = False
    has_loss: bool = False


@dataclass(frozen=True)
class CallWords:
    """How a style writes calls of tools: JSON from `begin` to `end`; `end` None: a call is a whole turn.

    `tokens` are the bytes of `begin` and `end` by id, where a tokenizer has them as special tokens.
    """

    begin: str
    end: str | None = None
    arguments_key: str = "arguments"
    tokens: Mapping[int, bytes] = field(default_factory=dict[int, bytes])

    def of(self, special_tokens: Mapping[str, int]) -> "CallWords":
        """Return these words for a tokenizer's special tokens."""
        tokens = {id_: name.encode() for name, id_ in special_tokens.items() if name in (self.begin, self.end)}
        return replace(self, tokens=tokens)


@dataclass(frozen=True)
class ChatStyle:
    """One way to write conversations.

    `answer` precedes the assistant's text, `calls` mark each call of a tool in it.
    """

    name: str
    special_tokens: tuple[str, ...]
    write: Callable[[Sequence[Turn]], Iterable[Segment]]
    answer: tuple[Segment, ...]
    calls: CallWords

    @property
    def end(self) -> str:
        """Return the special token at the end of the assistant's turn."""
        written = self.write((Turn(USER, "x"), Turn(ASSISTANT, "x")))
        return [segment.text for segment in written if segment.is_special][-1]


def _special(token: str, *, has_loss: bool = False) -> Segment:
    return Segment(token, is_special=True, has_loss=has_loss)


def _between(start: str, end: str, text: str) -> Iterator[Segment]:
    yield from (_special(start), Segment(text), _special(end))


def _write_lmtrain(turns: Sequence[Turn]) -> Iterator[Segment]:
    for turn in turns:
        if turn.role == ASSISTANT:
            yield _special("<|assistant_start|>")
            yield Segment(turn.text, has_loss=turn.has_loss)
            for call in turn.calls:
                yield _special("<|tool_call_start|>", has_loss=turn.has_loss)
                yield Segment(call.as_json(), has_loss=turn.has_loss)
                yield _special("<|tool_call_end|>", has_loss=turn.has_loss)
            yield _special("<|assistant_end|>", has_loss=turn.has_loss)
        else:
            name = {SYSTEM: "system", USER: "user", TOOL: "tool_result"}[turn.role]
            yield from _between(f"<|{name}_start|>", f"<|{name}_end|>", turn.text)


def _write_chatml(turns: Sequence[Turn]) -> Iterator[Segment]:
    for index, turn in enumerate(turns):
        is_answered = index > 0 and turns[index - 1].role == TOOL
        goes_on = index + 1 < len(turns) and turns[index + 1].role == TOOL
        if turn.role == ASSISTANT:
            calls = [f"<tool_call>\n{call.as_json()}\n</tool_call>" for call in turn.calls]
            yield from _CHATML_ANSWER
            yield Segment("\n".join([*([turn.text] if turn.text else []), *calls]), has_loss=turn.has_loss)
            yield from (_special("<|im_end|>", has_loss=turn.has_loss), Segment("\n"))
        elif turn.role == TOOL:  # all answers stand in one user turn
            yield from () if is_answered else (_special("<|im_start|>"), Segment("user"))
            yield Segment(f"\n<tool_response>\n{turn.text}\n</tool_response>")
            yield from () if goes_on else (_special("<|im_end|>"), Segment("\n"))
        else:
            yield from _between("<|im_start|>", "<|im_end|>", f"{turn.role}\n{turn.text}")
            yield Segment("\n")


def _write_llama3(turns: Sequence[Turn]) -> Iterator[Segment]:
    yield _special("<|begin_of_text|>")
    for index, turn in enumerate(turns):
        if turn.role == ASSISTANT:
            yield from _LLAMA3_ANSWER
            yield Segment(_llama3_words(turn, index), has_loss=turn.has_loss)
            yield _special("<|eot_id|>", has_loss=turn.has_loss)
        else:
            yield from _llama3_header("ipython" if turn.role == TOOL else turn.role)
            yield from (Segment(turn.text.strip()), _special("<|eot_id|>"))


def _llama3_words(turn: Turn, index: int) -> str:
    if len(turn.calls) > 1 or (turn.calls and turn.text.strip()):
        where = f"messages[{index}] (role {turn.role})"
        raise ConversationError(where, "one tool call and nothing else a turn in the llama3 style", "split the turn")
    return turn.calls[0].as_json(arguments_key="parameters") if turn.calls else turn.text.strip()


def _llama3_header(role: str) -> tuple[Segment, ...]:
    return (*_between("<|start_header_id|>", "<|end_header_id|>", role), Segment("\n\n"))


def _write_inst(turns: Sequence[Turn]) -> Iterator[Segment]:
    """A system text stands before the first user's."""
    system = ""
    for turn in turns:
        if turn.role == SYSTEM:
            system = f"{turn.text}\n\n"
        elif turn.role == ASSISTANT:
            lines = [*([turn.text] if turn.text else []), *(call.as_json() for call in turn.calls)]
            yield Segment("\n".join(lines), has_loss=turn.has_loss)
            yield _special("</s>", has_loss=turn.has_loss)
        else:
            yield from _between("[INST]", "[/INST]", system + turn.text)
            system = ""


_CHATML_ANSWER = (_special("<|im_start|>"), Segment("assistant\n"))
_LLAMA3_ANSWER = _llama3_header(ASSISTANT)

STYLES = (
    ChatStyle(
        "lmtrain",
        CHAT_TOKENS,
        _write_lmtrain,
        (_special("<|assistant_start|>"),),
        CallWords("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    ChatStyle(
        "chatml",
        ("<|im_start|>", "<|im_end|>"),
        _write_chatml,
        _CHATML_ANSWER,
        CallWords("<tool_call>", "</tool_call>"),
    ),
    ChatStyle(
        "llama3",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        _write_llama3,
        _LLAMA3_ANSWER,
        CallWords('{"name"', arguments_key="parameters"),
    ),
    ChatStyle("inst", ("[INST]", "[/INST]", "</s>"), _write_inst, (), CallWords('{"name"')),
)
STYLE_NAMES = ", ".join(style.name for style in STYLES)


def styles_of(special_tokens: Collection[str]) -> list[ChatStyle]:
    """Return the styles that these special tokens can write, lmtrain's first."""
    return [style for style in STYLES if all(token in special_tokens for token in style.special_tokens)]


def writes_conversations(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer has the special tokens of a style, or a chat template."""
    return bool(styles_of(tokenizer.special_tokens)) or tokenizer.template is not None


def turn_ends(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that end an assistant's turn, in the order of the styles."""
    writer = own_template(tokenizer)
    return (
        [tokenizer.special_tokens[style.end] for style in styles_of(tokenizer.special_tokens)]
        if writer is None
        else writer.turn_ends()
    )


def own_template(tokenizer: Tokenizer) -> TemplateWriter | None:
    """Return the chat template that a tokenizer writes conversations in, None where it has a style or no template."""
    if tokenizer.template is None or styles_of(tokenizer.special_tokens):
        return None
    return TemplateWriter(tokenizer, tokenizer.template)


Messages = Sequence[Mapping[str, Any]]
IdsAndMask = tuple[NDArray[np.uint32], NDArray[np.bool_]]


def chat_style(tokenizer: Tokenizer) -> ChatStyle:
    """Return the style of a tokenizer's special tokens."""
    if found := styles_of(tokenizer.special_tokens):
        return found[0]
    lacks = f"has no chat template and lacks the special tokens of a chat style ({STYLE_NAMES})"
    raise DataError(f"the tokenizer {lacks}; train one with tokenizer.chat=true, or use a chat model's.")


def render(tokenizer: Tokenizer, messages: Messages) -> IdsAndMask:
    """Return a conversation's ids [N], and their loss mask [N].

    Raises:
        ConversationError: The messages are not a conversation.
        DataError: The tokenizer lacks the special tokens.
    """
    return render_batch(tokenizer, [messages])[0]


def render_batch(tokenizer: Tokenizer, conversations: Sequence[Messages]) -> list[IdsAndMask]:
    """Return each conversation's ids and loss mask; their texts are encoded in one go."""
    if (writer := own_template(tokenizer)) is not None:
        return [writer.document(read_conversation(messages)) for messages in conversations]
    chosen = chat_style(tokenizer)
    return _encode(tokenizer, [_joined(chosen.write(read_conversation(messages))) for messages in conversations])


def render_prompt(tokenizer: Tokenizer, messages: Messages) -> NDArray[np.uint32]:
    """Return the ids of a conversation with a user's or a tool's last turn, up to the start of the answer."""
    turns = read_conversation(messages, for_answer=True)
    if (writer := own_template(tokenizer)) is not None:
        return np.array(writer.prompt(turns), np.uint32)
    chosen = chat_style(tokenizer)
    return _encode(tokenizer, [_joined([*chosen.write(turns), *chosen.answer])])[0][0]


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
