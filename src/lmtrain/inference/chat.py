"""Conversations with a model: messages to the ids of its prompt, its answers, and a session of several turns.

A model writes conversations with its own chat tokens, its template, or in plain words: "User: ...", "Assistant:", each
turn on a line. A model never trained on conversations gets plain words, even with chat tokens in its tokenizer.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, final

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Delta, Generation, Request, ToolUse
from lmtrain.inference.loaded_model import ChatTemplate, LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.inference.tools import StyleTools, Tool
from lmtrain.interop.template_renderer import TemplateProblem, TemplateRenderer
from lmtrain.tokenizers.base import CHAT_TOKENS, Tokenizer
from lmtrain.tokenizers.chat import chat_style, render_prompt
from lmtrain.tokenizers.conversation import ASSISTANT, SYSTEM, TOOL, USER, Turn, read_conversation

Messages = Sequence[Mapping[str, Any]]
NAMES = {USER: "User", ASSISTANT: "Assistant", TOOL: "Tool"}


class ChatFormat(Protocol):
    """A way to write conversations; `stops` end an answer, as its tokens do, and `space` stands before its text."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def stops(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def space(self) -> str: ...  # noqa: D102

    def prompt(self, messages: Messages) -> list[int]:
        """Return the ids up to the start of the answer.

        Raises:
            DataError: The messages are not a conversation, or the model's template refuses them.
        """
        ...

    def tools(self, tools: Mapping[str, Tool]) -> ToolUse | None:
        """Return how the model calls tools, given by name; None where that is unknown."""
        ...


def chat_format(loaded: LoadedModel) -> ChatFormat:
    """Return how a model writes conversations."""
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
    """Return a line that explains why a model is given plain words; None for another format."""
    if chat_format(loaded).name != PlainFormat.name:
        return None
    reason = "has no chat tokens" if loaded.converses else "was trained on no conversations (task=sft does)"
    return f"The model {reason}: turns are written in plain words, and it may not answer well."


@final
@dataclass(frozen=True)
class StyleFormat:
    """A chat style of training: `tokenizers.chat_styles`."""

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
    """Plain words, for a model without chat tokens."""

    tokenizer: Tokenizer
    name: str = "plain"
    stops: tuple[str, ...] = ("\nUser:", "\nAssistant:")
    space: str = " "

    def prompt(self, messages: Messages) -> list[int]:
        """Return the ids up to the start of the answer, after an end-of-text id."""
        turns = read_conversation(messages, for_answer=True)
        text = "".join(map(_plain, turns)) + f"{NAMES[ASSISTANT]}:"
        return [self.tokenizer.end_of_text_id, *self.tokenizer.encode(text)]

    def tools(self, tools: Mapping[str, Tool]) -> None:
        """Return None: plain words have no calls."""


def _plain(turn: Turn) -> str:
    said = turn.text.removeprefix(PlainFormat.space) if turn.role == ASSISTANT else turn.text  # an answer sent back
    text = "\n".join([*([said] if said else []), *(call.as_json() for call in turn.calls)])
    return f"{text}\n\n" if turn.role == SYSTEM else f"{NAMES[turn.role]}: {text}\n"


@final
@dataclass(frozen=True)
class TemplateFormat:
    """A template of transformers, run in another process; only its own text becomes special tokens, no message's."""

    tokenizer: Tokenizer
    template: ChatTemplate
    renderer: TemplateRenderer = field(default_factory=TemplateRenderer)
    name: str = "template"
    stops: tuple[str, ...] = ()
    space: str = ""

    def prompt(self, messages: Messages) -> list[int]:
        """Return the ids up to the start of the answer."""
        turns = read_conversation(messages, for_answer=True)
        mark = secrets.token_hex(8)  # nobody who writes a message can guess it
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
                f"messages: the model's chat template refuses them ({problem}); leave out system or tool messages."
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


def answer_all(loaded: LoadedModel, conversations: Sequence[Messages], *, num_new_tokens: int) -> list[Generation]:
    """Return the greedy answer to each conversation's last turn; one beyond the context is read from its end.

    Raises:
        DataError: Messages are not a conversation that asks for an answer.
    """
    style = chat_format(loaded)
    requests = [
        Request(
            prompt=style.prompt(messages),
            num_new_tokens=num_new_tokens,
            sampling=Sampling(temperature=0.0),
            end_ids=loaded.end_ids,
            stops=style.stops,
            index=index,
            slides=True,
        )
        for index, messages in enumerate(conversations)
    ]
    return loaded.engine().write(requests)


@final
class ChatSession:
    """A conversation as `messages`; `num_left_out` of the oldest are not read where the context ends."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        sampling: Sampling,
        num_new_tokens: int,
        stops: tuple[str, ...] = (),
        seed: int | None = None,
        system: str = "",
        tools: Mapping[str, Tool] | None = None,
    ) -> None:
        self._loaded, self.format = loaded, chat_format(loaded)
        self._engine = loaded.engine(EngineLimits(num_texts=1))
        self.sampling, self.system = sampling, system
        self._num_new_tokens, self._stops, self._seed = num_new_tokens, stops, seed
        self.tools = self.format.tools(tools) if tools else None
        self.messages: list[dict[str, Any]] = []
        self.num_left_out = 0

    def reset(self) -> None:
        """Forget the conversation; the system's text stays."""
        self.messages, self.num_left_out = [], 0

    def set_temperature(self, temperature: float) -> None:
        """Answer at another temperature.

        Raises:
            ConfigurationError: It is below 0 or not a number.
        """
        self.sampling = replace(self.sampling, temperature=temperature)

    def save(self, path: Path) -> None:
        """Append the conversation to a file of JSON lines, as training on conversations reads it.

        Raises:
            EnvironmentProblem: The file cannot be written.
        """
        line = json.dumps({"messages": [*self._system_message(), *self.messages]}, ensure_ascii=False)
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as problem:
            raise EnvironmentProblem(f"{path} cannot be written: {problem}.") from problem

    def answer(self, text: str, *, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[Delta]:
        """Yield the answer to a text as it comes; a stopped one is kept as far as it came.

        Raises:
            ConfigurationError: The text alone is beyond the model's context.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        request = Request(
            prompt=self._prompt(messages),
            num_new_tokens=self._num_new_tokens,
            sampling=self.sampling,
            end_ids=self._loaded.end_ids,
            stops=(*self.format.stops, *self._stops),
            seed=self._seed,
            index=len(messages),
            tools=self.tools,
        )
        generation = self._engine.submit(request)
        while not self._engine.is_idle:
            for delta in self._engine.step():
                if delta.text or delta.results:
                    yield delta
            if is_stopped():
                self._engine.cancel(generation)
        if generation.last_words.strip():  # a question without an answer would be no conversation
            self.messages = [*messages, *_answer(generation)]

    def _system_message(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self.system}] if self.system.strip() else []

    def _prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the ids of as much of the conversation as leaves room for an answer."""
        context = self._loaded.model.max_context_tokens
        room = min(self._num_new_tokens, context // 4)
        questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
        for first in (place for place in questions if place >= self.num_left_out):
            prompt = self.format.prompt([*self._system_message(), *messages[first:]])
            if len(prompt) + room <= context:
                self.num_left_out = first
                return prompt
        prompt = self.format.prompt([*self._system_message(), messages[-1]])
        if len(prompt) < context:
            self.num_left_out = len(messages) - 1
            return prompt
        raise ConfigurationError(
            f"message: must have fewer than {context} tokens, the model's context; got {len(prompt)}."
        )


def _answer(generation: Generation) -> Iterator[dict[str, Any]]:
    """Yield an answer's messages: its calls, their results, its last words."""
    for turn in generation.tool_turns:
        calls = [{"name": each.call.name, "arguments": dict(each.call.arguments)} for each in turn.results]
        yield {"role": "assistant", "content": turn.text, "tool_calls": calls}
        yield from ({"role": "tool", "content": each.result} for each in turn.results)
    yield {"role": "assistant", "content": generation.last_words.strip()}
