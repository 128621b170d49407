"""Messages to the ids of a model's prompt: by its own chat tokens, its template, or in plain words.

A model never trained on conversations gets the plain words, also with chat tokens in its tokenizer: "User: ...",
"Assistant:", each turn on a line of its own.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from lmtrain.errors import DataError
from lmtrain.inference.generation import ToolUse
from lmtrain.inference.loaded_model import ChatTemplate, LoadedModel
from lmtrain.inference.tools.style_tools import StyleTools, Tool
from lmtrain.interop.template_renderer import TemplateProblem, TemplateRenderer
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat import chat_style, render_prompt
from lmtrain.tokenizers.conversation import ASSISTANT, SYSTEM, TOOL, USER, Turn, read_conversation
from lmtrain.tokenizers.special_tokens import CHAT_TOKENS

Messages = Sequence[Mapping[str, Any]]
NAMES = {USER: "User", ASSISTANT: "Assistant", TOOL: "Tool"}


class ChatFormat(Protocol):
    """A way to write conversations down; `stops` end an answer beside its tokens."""

    @property
    def name(self) -> str:
        """Return its name for people."""
        ...

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the strings at the end of an answer."""
        ...

    @property
    def space(self) -> str:
        """Return the text between the prompt and an answer's first word."""
        ...

    def prompt(self, messages: Messages) -> list[int]:
        """Return the ids up to the start of the answer.

        Raises:
            DataError: The messages are no conversation, or one refused by this model's template.
        """
        ...

    def tools(self, tools: Mapping[str, Tool]) -> ToolUse | None:
        """Return how the model calls tools, given by name; None: its way to call them is not known here."""
        ...


def chat_format(loaded: LoadedModel) -> ChatFormat:
    """Return how a model converses."""
    if not loaded.converses:
        return PlainFormat(loaded.tokenizer)
    specials = loaded.tokenizer.special_tokens
    if loaded.template is not None and not set(CHAT_TOKENS) <= set(specials):
        return TemplateFormat(loaded.tokenizer, loaded.template)
    try:
        style = chat_style(loaded.tokenizer)
    except DataError:
        return PlainFormat(loaded.tokenizer)
    return StyleFormat(loaded.tokenizer, style.name)


def plain_line(loaded: LoadedModel) -> str | None:
    """Return the reason for plain words in a line for people; None for another format."""
    if chat_format(loaded).name != PlainFormat.name:
        return None
    reason = "has no chat tokens" if loaded.converses else "was trained on no conversations (task=sft does)"
    return f"It {reason}: turns are plain words, and it may not answer well."


@final
@dataclass(frozen=True)
class StyleFormat:
    """One of the styles of conversations in training here."""

    tokenizer: Tokenizer
    name: str
    stops: tuple[str, ...] = ()
    space: str = ""

    def prompt(self, messages: Messages) -> list[int]:
        """Return the ids up to the start of the answer; as in training, a document follows an end-of-text id."""
        rendered = render_prompt(self.tokenizer, messages, style=self.name)
        return [self.tokenizer.end_of_text_id, *rendered.tolist()]

    def tools(self, tools: Mapping[str, Tool]) -> ToolUse:
        """Return how the model calls tools."""
        return StyleTools(self.tokenizer, chat_style(self.tokenizer, self.name), tools)


@final
@dataclass(frozen=True)
class PlainFormat:
    """Words alone, for a model without chat tokens."""

    tokenizer: Tokenizer
    name: str = "plain"
    stops: tuple[str, ...] = ("\nUser:", "\nAssistant:")
    space: str = " "

    def prompt(self, messages: Messages) -> list[int]:
        """Return the ids up to the start of the answer; the conversation begins a document."""
        turns = read_conversation(messages, for_answer=True)
        text = "".join(map(_plain, turns)) + f"{NAMES[ASSISTANT]}:"
        return [self.tokenizer.end_of_text_id, *self.tokenizer.encode(text)]

    def tools(self, tools: Mapping[str, Tool]) -> None:
        """Return None: words alone call nothing."""


def _plain(turn: Turn) -> str:
    said = turn.text.removeprefix(PlainFormat.space) if turn.role == ASSISTANT else turn.text  # an answer sent back
    text = "\n".join([*([said] if said else []), *(call.as_json() for call in turn.calls)])
    return f"{text}\n\n" if turn.role == SYSTEM else f"{NAMES[turn.role]}: {text}\n"


@final
@dataclass(frozen=True)
class TemplateFormat:
    """A template of transformers, run in a process of its own; special tokens come from its own text alone."""

    tokenizer: Tokenizer
    template: ChatTemplate
    renderer: TemplateRenderer = field(default_factory=TemplateRenderer)
    name: str = "template"
    stops: tuple[str, ...] = ()
    space: str = ""

    def prompt(self, messages: Messages) -> list[int]:
        """Return the ids up to the start of the answer."""
        turns = read_conversation(messages, for_answer=True)
        mark = secrets.token_hex(8)  # not to be guessed by whoever writes a message
        text = self._rendered([_as_message(turn, self._broken, mark) for turn in turns])
        return self._encoded(text, mark)

    def tools(self, tools: Mapping[str, Tool]) -> None:
        """Return None: a template does not say how its model's calls are read."""

    def _broken(self, text: str, mark: str) -> str:
        """Return a message's text with every special token in it broken by a mark."""
        for name in self.tokenizer.special_tokens:
            text = text.replace(name, f"{name[:1]}{mark}{name[1:]}") if name in text else text
        return text

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        names = {"bos_token": self.template.begin, "eos_token": self.template.end}
        variables = {"messages": messages, "add_generation_prompt": True, "tools": None, **names}
        try:
            return self.renderer.render(self.template.text, variables)
        except TemplateProblem as problem:
            raise DataError(
                f"messages: the model's chat template does not write them ({problem}); leave out what it does "
                "not know, as a system or tool turn."
            ) from problem

    def _encoded(self, text: str, mark: str) -> list[int]:
        """Return the ids of a text; its special tokens are those unbroken by a mark."""
        specials, ids, start = self.tokenizer.special_tokens, list[int](), 0
        while found := min(
            ((at, -len(name), name) for name in specials if (at := text.find(name, start)) >= 0), default=None
        ):
            ids += self._plain_ids(text[start : found[0]], mark)
            ids.append(specials[found[2]])
            start = found[0] - found[1]
        return ids + self._plain_ids(text[start:], mark)

    def _plain_ids(self, text: str, mark: str) -> list[int]:
        return self.tokenizer.encode(text.replace(mark, "")) if text else []


def _as_message(turn: Turn, broken: Any, mark: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": broken(turn.text, mark)}
    if turn.calls:
        calls = [{"name": broken(call.name, mark), "arguments": dict(call.arguments)} for call in turn.calls]
        message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return message
