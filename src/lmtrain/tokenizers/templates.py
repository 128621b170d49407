"""Chat templates of transformers as ids: read from a folder, rendered in a sandbox, with marks of the sampled tokens.

The ids that a model samples follow from renderings alone: those by which the conversation up to an answer is longer
than the conversation up to its question. So a template may write its marks as special tokens or as plain text.
"""

import functools
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.storage import foreign_json
from lmtrain.storage.damage import read_object, refuse_damage
from lmtrain.tokenizers.base import ChatTemplate, Tokenizer
from lmtrain.tokenizers.conversation import ASSISTANT, USER, ConversationError, Turn
from lmtrain.tokenizers.template_renderer import TemplateProblem, TemplateRenderer

TOKENIZER_CONFIG: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
MAX_TEMPLATE_BYTES: Final = 1 << 20
PROBE: Final = (Turn(USER, "x"), Turn(ASSISTANT, "x"))


def read_template(folder: Path) -> ChatTemplate | None:
    """Return the chat template in a folder of transformers: its file, else the entry of the tokenizer's config."""
    config = read_object(folder / TOKENIZER_CONFIG)
    found = config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = (each for each in found if isinstance(each, dict) and each.get("name") == "default")
        found = next(named, {}).get("template")
    if (file := folder / TEMPLATE_FILE).is_file():
        with refuse_damage(file, fix="copy it again"):
            found = foreign_json.read_bytes(file, max_bytes=MAX_TEMPLATE_BYTES).decode()
    if not isinstance(found, str):
        return None
    return ChatTemplate(found, token_named(config.get("bos_token")), token_named(config.get("eos_token")))


def token_named(named: Any) -> str:
    """Return the text of a token in a tokenizer's configuration, empty where it has none."""
    content = named.get("content") if isinstance(named, dict) else named
    return content if isinstance(content, str) else ""


@final
class TemplateWriter:
    """Writes conversations in one template; no text of a message becomes a special token."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer, self._template = tokenizer, template

    def ids(
        self, turns: Sequence[Turn], *, tools: Sequence[Mapping[str, Any]] = (), for_answer: bool = False
    ) -> list[int]:
        """Return the ids of a conversation, with `for_answer` up to the start of an answer."""
        mark = secrets.token_hex(8)  # nobody who writes a message can guess it
        texts = {"messages": [_as_message(turn) for turn in turns], "tools": [*tools] or None}
        names = {"bos_token": self._template.begin, "eos_token": self._template.end}
        variables = {**_broken(texts, self._tokenizer, mark), "add_generation_prompt": for_answer, **names}
        try:
            text = _renderer().render(self._template.text, variables)
        except TemplateProblem as problem:
            rule = "the model's chat template refuses them"
            raise ConversationError("messages", rule, f"{problem}; leave out system or tool messages") from problem
        return _encoded(self._tokenizer, text, mark)

    def document(self, turns: Sequence[Turn]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Return a conversation's ids [N] without an end-of-text id in front, and the mask [N] of the sampled ones.

        An answer ends with its last special token, as text behind that is the template's. The last answer ends with an
        end-of-text id where the template has no such token.

        Raises:
            ConversationError: The template refuses the messages, leaves out a tool call, or writes the beginning of a
                conversation in another way than the whole.
        """
        whole, answer = self.ids(turns), list[int]()
        mask = np.zeros(len(whole) + 1, np.bool_)
        for index, turn in enumerate(turns):
            if turn.role != ASSISTANT:
                continue
            start = self.ids(turns[:index], for_answer=True)
            stop = whole if index == len(turns) - 1 else self.ids(turns[: index + 1])
            if len(start) >= len(stop) or stop[: len(start)] != start or whole[: len(stop)] != stop:
                rule = "its beginning has other tokens alone than within the whole in the model's chat template"
                raise ConversationError(f"messages[{index}] (role {ASSISTANT})", rule, "leave it out")
            answer = stop[len(start) :]
            self._require_calls(turn, answer, index)
            mask[len(start) : len(start) + self._num_sampled(answer)] = turn.has_loss
        specials = set(self._tokenizer.special_tokens.values())
        if turns[-1].role == ASSISTANT and specials.isdisjoint(answer):
            whole, mask[-1] = [*whole, self._tokenizer.end_of_text_id], turns[-1].has_loss
        first = int(whole[0] == self._tokenizer.end_of_text_id)
        return np.array(whole[first:], np.uint32), mask[first : len(whole)]

    def prompt(self, turns: Sequence[Turn], *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the ids up to the start of an answer, without an end-of-text id in front."""
        ids = self.ids(turns, tools=tools, for_answer=True)
        return ids[int(ids[:1] == [self._tokenizer.end_of_text_id]) :]

    def turn_ends(self) -> list[int]:
        """Return the special tokens at the end of an answer and of a text."""
        specials = self._tokenizer.special_tokens
        ends = [specials[name] for name in (self._template.end,) if name in specials]
        try:
            ids, mask = self.document(PROBE)
        except ConversationError:
            return ends
        last = int(ids[mask][-1])
        return [*dict.fromkeys([*([last] if last in specials.values() else []), *ends])]

    def exported(self) -> str:
        """Return a template that writes a document as in training, behind an end-of-text token, with any tokenizer."""
        specials = self._tokenizer.special_tokens.items()
        end = next(name for name, id_ in specials if id_ == self._tokenizer.end_of_text_id)
        names = {"bos_token": self._template.begin, "eos_token": self._template.end}
        head = "".join(f"{{%- set {name} = {json.dumps(token)} -%}}" for name, token in names.items())
        has_end = self.ids(PROBE)[0] == self._tokenizer.end_of_text_id
        return head + ("" if has_end else f"{{{{- {json.dumps(end)} }}}}") + self._template.text

    def _num_sampled(self, answer: Sequence[int]) -> int:
        """Return how many ids of an answer a model samples: up to its last special token, if only space follows."""
        specials = set(self._tokenizer.special_tokens.values())
        last = max((place for place, id_ in enumerate(answer) if id_ in specials), default=len(answer) - 1)
        return len(answer) if self._tokenizer.decode(answer[last + 1 :]).strip() else last + 1

    def _require_calls(self, turn: Turn, answer: Sequence[int], index: int) -> None:
        text = self._tokenizer.decode(answer)
        if any(call.name not in text for call in turn.calls):
            rule = "the model's chat template writes no tool calls"
            raise ConversationError(f"messages[{index}] (role {ASSISTANT})", rule, "leave the conversation out")


@functools.cache
def _renderer() -> TemplateRenderer:
    """Return the one renderer of this process."""
    return TemplateRenderer()


def _as_message(turn: Turn) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in turn.calls]
    return {"role": turn.role, "content": turn.text} | ({"tool_calls": calls} if calls else {})


def _broken(value: Any, tokenizer: Tokenizer, mark: str) -> Any:
    """Return a value with every special token in its texts broken by a mark."""
    if isinstance(value, Mapping):
        return {key: _broken(each, tokenizer, mark) for key, each in value.items()}
    if isinstance(value, list):
        return [_broken(each, tokenizer, mark) for each in value]
    if isinstance(value, str):
        for name in tokenizer.special_tokens:
            value = value.replace(name, f"{name[:1]}{mark}{name[1:]}") if name in value else value
    return value


def _encoded(tokenizer: Tokenizer, text: str, mark: str) -> list[int]:
    """Return the ids of a text; its special tokens are those unbroken by a mark."""
    specials, ids, start = tokenizer.special_tokens, list[int](), 0

    def plain_ids(text: str) -> list[int]:
        return tokenizer.encode(text.replace(mark, "")) if text else []

    while found := min(
        ((at, -len(name), name) for name in specials if (at := text.find(name, start)) >= 0), default=None
    ):
        ids += [*plain_ids(text[start : found[0]]), specials[found[2]]]
        start = found[0] - found[1]
    return ids + plain_ids(text[start:])
