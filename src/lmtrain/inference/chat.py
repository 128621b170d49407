"""Conversations with a model: messages to the ids of its prompt, its answers, and a session of several turns.

A model writes conversations with its own chat tokens, its template, or in plain words: "User: ...", "Assistant:", each
turn on a line. A model never trained on conversations gets plain words, even with chat tokens in its tokenizer.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Generation, Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.tokenizers.base import CHAT_TOKENS, ChatTemplate, Tokenizer
from lmtrain.tokenizers.chat import CallWords, render_prompt, styles_of
from lmtrain.tokenizers.conversation import ASSISTANT, SYSTEM, TOOL, USER, Turn, read_conversation
from lmtrain.tokenizers.templates import TemplateWriter

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]  # descriptions, as of OpenAI's API
PLAIN: Final = "plain"
NAMES: Final = {USER: "User", ASSISTANT: "Assistant", TOOL: "Tool"}


@final
@dataclass(frozen=True)
class ChatFormat:
    """A way to write conversations.

    `write` returns the ids of messages and descriptions of tools up to the start of the answer, `encode` those of a
    text. `calls` are how the model calls tools, None where it cannot. `stops` end an answer, as its tokens do, and
    `space` stands before its text.
    """

    name: str
    write: Callable[[Messages, Tools], list[int]]
    encode: Callable[[str], list[int]]
    calls: CallWords | None = None
    stops: tuple[str, ...] = ()
    space: str = ""

    def prompt(self, messages: Messages, tools: Tools = ()) -> list[int]:
        """Return the ids up to the start of the answer; a last turn of the assistant is the answer's beginning.

        System texts are joined at the start, and neighbouring turns of a user or the assistant into one.

        Raises:
            DataError: The messages are not a conversation, or the model's template refuses them.
        """
        joined = join_turns(messages)
        if not _is_begun_answer(joined):
            return self.write(joined, tools)
        begun = read_conversation(joined)[-1].text
        return [*self.write(joined[:-1], tools), *self.encode(self.space + begun)]


def join_turns(messages: Messages) -> Messages:
    """Return messages in the order of training; those without roles stay as they are, to be refused."""
    given: Any = messages
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in cast("list[Any]", given)):
        return messages
    system = [one for one in messages if one.get("role") in (SYSTEM, "developer") and one.get("content")]
    joined: list[Mapping[str, Any]] = [_joined(system, SYSTEM)] if len(system) > 1 else [*system]
    for message in (one for one in messages if one.get("role") not in (SYSTEM, "developer")):
        role, before = message.get("role"), joined[-1] if joined else {}
        if role in (USER, ASSISTANT) and before.get("role") == role and not before.get("tool_calls"):
            joined[-1] = _joined([before, message], role)
        else:
            joined.append(message)
    return joined


def _joined(messages: Messages, role: str) -> dict[str, Any]:
    """Return messages of one role as one, a blank line between their texts."""
    parts: list[Any] = []
    for content in (one["content"] for one in messages if one.get("content")):
        parts += [{"type": "text", "text": "\n\n"}] if parts else []
        texts: list[Any] = [*content] if isinstance(content, list) else [content]
        parts += [{"type": "text", "text": each} if isinstance(each, str) else each for each in texts]
    calls = {key: messages[-1][key] for key in ("tool_calls",) if messages[-1].get(key)}
    return {"role": role, "content": parts, **calls}


def _is_begun_answer(messages: Messages) -> bool:
    given: Any = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(given, Mapping) and given.get("role") == ASSISTANT and not given.get("tool_calls")


def chat_format(loaded: LoadedModel) -> ChatFormat:
    """Return how a model writes conversations."""
    tokenizer, styles = loaded.tokenizer, styles_of(loaded.tokenizer.special_tokens)
    calls = styles[0].calls.of(tokenizer.special_tokens) if styles else None
    if not loaded.converses:
        return plain_format(tokenizer)
    if loaded.template is not None and not set(CHAT_TOKENS) <= set(tokenizer.special_tokens):
        return template_format(tokenizer, loaded.template, calls)
    if not styles:
        template = tokenizer.template
        return template_format(tokenizer, template, was_trained_here=True) if template else plain_format(tokenizer)

    def write(messages: Messages, tools: Tools) -> list[int]:
        ids = render_prompt(tokenizer, _with_tools(messages, tools))
        return [tokenizer.end_of_text_id, *ids.tolist()]  # as in training, a document follows an end-of-text id

    return ChatFormat(styles[0].name, write, tokenizer.encode, calls)


def plain_line(loaded: LoadedModel) -> str | None:
    """Return a line that explains why a model is given plain words; None for another format."""
    if chat_format(loaded).name != PLAIN:
        return None
    reason = "has no chat tokens" if loaded.converses else "was trained on no conversations (task=sft does)"
    return f"The model {reason}: turns are written in plain words, and it may not answer well."


def _with_tools(messages: Messages, tools: Tools) -> Messages:
    """Return messages whose system text describes the tools."""
    if not tools:
        return messages
    first, *_ = read_conversation(messages, for_answer=True)
    has_system = first.role == SYSTEM
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    texts = [*([first.text] if has_system else []), "You may call these functions:", *lines]
    return [{"role": SYSTEM, "content": "\n".join(texts)}, *(messages[1:] if has_system else messages)]


def plain_format(tokenizer: Tokenizer) -> ChatFormat:
    """Return plain words, for a model without chat tokens."""

    def write(messages: Messages, tools: Tools) -> list[int]:
        del tools
        turns = read_conversation(messages, for_answer=True)
        text = "".join(map(_plain, turns)) + f"{NAMES[ASSISTANT]}:"
        return [tokenizer.end_of_text_id, *tokenizer.encode(text)]

    return ChatFormat(PLAIN, write, tokenizer.encode, stops=("\nUser:", "\nAssistant:"), space=" ")


def _plain(turn: Turn) -> str:
    said = turn.text.removeprefix(" ") if turn.role == ASSISTANT else turn.text  # an answer sent back
    text = "\n".join([*([said] if said else []), *(call.as_json() for call in turn.calls)])
    return f"{text}\n\n" if turn.role == SYSTEM else f"{NAMES[turn.role]}: {text}\n"


def template_format(
    tokenizer: Tokenizer, template: ChatTemplate, calls: CallWords | None = None, *, was_trained_here: bool = False
) -> ChatFormat:
    """Return a template of transformers; `was_trained_here` puts an end-of-text id in front, as training did."""
    writer = TemplateWriter(tokenizer, template)

    def write(messages: Messages, tools: Tools) -> list[int]:
        turns = read_conversation(messages, for_answer=True)
        if was_trained_here:
            return [tokenizer.end_of_text_id, *writer.prompt(turns, tools=tools)]
        return writer.ids(turns, tools=tools, for_answer=True)

    return ChatFormat("template", write, tokenizer.encode, calls)


def answer_all(loaded: LoadedModel, conversations: Sequence[Messages], *, num_new_tokens: int) -> list[Generation]:
    """Return the greedy answer to each conversation's last turn; one beyond the context is read from its end."""
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
    ) -> None:
        self._loaded, self.format = loaded, chat_format(loaded)
        self._engine = loaded.engine(EngineLimits(num_texts=1))
        self.sampling, self.system = sampling, system
        self._num_new_tokens, self._stops, self._seed = num_new_tokens, stops, seed
        self.messages: list[dict[str, Any]] = []
        self.num_left_out = 0

    def reset(self) -> None:
        """Forget the conversation; the system's text stays."""
        self.messages, self.num_left_out = [], 0

    def save(self, path: Path) -> None:
        """Append the conversation to a file of JSON lines, as training on conversations reads it."""
        line = json.dumps({"messages": [*self._system_message(), *self.messages]}, ensure_ascii=False)
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as problem:
            raise EnvironmentProblem(f"{path} cannot be written: {problem}.") from problem

    def answer(self, text: str, *, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[str]:
        """Yield the answer to a text as it comes; a stopped one is kept as it is.

        Raises:
            ConfigurationError: The text alone is beyond the model's context.
        """
        messages = [*self.messages, {"role": USER, "content": text}]
        request = Request(
            prompt=self._prompt(messages),
            num_new_tokens=self._num_new_tokens,
            sampling=self.sampling,
            end_ids=self._loaded.end_ids,
            stops=(*self.format.stops, *self._stops),
            seed=self._seed,
            index=len(messages),
        )
        generation = self._engine.submit(request)
        while not self._engine.is_idle:
            yield from (delta.text for delta in self._engine.step() if delta.text)
            if is_stopped():
                self._engine.cancel(generation)
        if said := generation.text.strip():  # a question without an answer would be no conversation
            self.messages = [*messages, {"role": ASSISTANT, "content": said}]

    def _system_message(self) -> list[dict[str, Any]]:
        return [{"role": SYSTEM, "content": self.system}] if self.system.strip() else []

    def _prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the ids of as much of the conversation as leaves room for an answer."""
        context, num_tokens = self._loaded.model.max_context_tokens, 0
        room = min(self._num_new_tokens, context // 4)
        questions = [place for place, message in enumerate(messages) if message["role"] == USER]
        for first in (place for place in questions if place >= self.num_left_out):
            prompt = self.format.prompt([*self._system_message(), *messages[first:]])
            num_tokens = len(prompt)
            if num_tokens + (room if first != questions[-1] else 1) <= context:
                self.num_left_out = first
                return prompt
        raise ConfigurationError(
            f"message: must have fewer than {context} tokens, the model's context; got {num_tokens}."
        )
