"""What a row of a table holds: a text, a conversation, or a preference pair, in the forms that data sets have them.

Conversations: OpenAI's messages, ShareGPT's, prompt and completion (TRL), instruction, input and output (Alpaca), with
a history of earlier questions and answers (LLaMA-Factory).
Pairs: prompt, chosen and rejected as texts or messages, or whole conversations whose shared beginning is the prompt.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from lmtrain.data.row_files import Row
from lmtrain.data.text_files import Reading
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.storage import foreign_json
from lmtrain.tokenizers.conversation import (
    ASSISTANT,
    IGNORED_KEYS,
    MESSAGE_KEYS,
    SYSTEM,
    TOOL,
    USER,
    ConversationError,
    read_conversation,
)

REJECTED: Final = "rejected"  # a key of a pair's last turn: the answer that was not preferred
Messages = tuple[Mapping[str, Any], ...]

# The usual columns for each part of a row; `source.columns` names others.
USUAL_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "messages": ("messages", "conversations"),
    "system": ("system", "system_prompt"),
    "history": ("history",),
    "prompt": ("prompt", "instruction"),
    "input": ("input",),
    "completion": ("completion", "output", "response"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
}
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "conversation": ("messages", "system", "history", "prompt", "input", "completion"),
    "pair": ("system", "history", "prompt", "chosen", "rejected"),
}
NEEDED: Final[Mapping[str, tuple[set[str], ...]]] = {
    "text": ({"text"},),
    "conversation": ({"messages"}, {"prompt", "completion"}),
    "pair": ({"chosen", "rejected"},),
}
UNSUPPORTED: Final = ("tools", "chat_template_kwargs")  # columns that would change how a conversation is written
USUAL_ROLES: Final[Mapping[str, str]] = {
    "human": USER,
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "model": ASSISTANT,
    "observation": TOOL,
}
NEXT_TURN: Final = re.compile(
    r"(?:\A|\n\n)(?:Human|Assistant):"
)  # in a conversation written as one text (Anthropic HH)
FUNCTION_CALL: Final = "function_call"  # ShareGPT's role of a call, whose text is JSON


@dataclass(frozen=True)
class RowShape:
    """The kind of a row's content, and the columns and roles that differ from the usual ones."""

    kind: Literal["text", "conversation", "pair"] = "text"
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    roles: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        """Check the names of parts and roles."""
        for part in self.columns:
            if part not in PARTS[self.kind]:
                known = ", ".join(PARTS[self.kind])
                fix = suggest(part, PARTS[self.kind])
                raise ConfigurationError(f"source.columns: must be parts of a {self.kind} ({known}), got {part}.{fix}")
        for role, ours in self.roles.items():
            if ours not in (SYSTEM, USER, ASSISTANT, TOOL):
                raise ConfigurationError(f"source.roles.{role}: must be system, user, assistant or tool, got {ours}.")

    def candidates(self, part: str) -> tuple[str, ...]:
        """Return the columns that may hold a part of the row."""
        return (self.columns[part],) if part in self.columns else USUAL_COLUMNS[part]

    @property
    def wanted(self) -> frozenset[str]:
        """Return every column that is read where it exists."""
        names = {name for part in PARTS[self.kind] for name in self.candidates(part)}
        return frozenset(names | (set() if self.kind == "text" else set(UNSUPPORTED)))

    def require_in(self, columns: Collection[str], *, table: str) -> None:
        """Refuse a table without the columns of this shape."""
        has = ", ".join(columns) or "none"
        for part, name in self.columns.items():
            if name not in columns:
                raise DataError(f"{_key(part)}={name}: {table} has only {has}.{suggest(name, columns)}")
        if not self.has_its_parts_in(columns):
            parts = " or ".join(" and ".join(sorted(one)) for one in NEEDED[self.kind])
            raise DataError(f"{table} has no column for {parts}, only {has}.{self._fix(columns)}")

    def has_its_parts_in(self, columns: Collection[str]) -> bool:
        """Return whether columns of these names hold a whole row."""
        found = {part for part in PARTS[self.kind] if any(name in columns for name in self.candidates(part))}
        return any(parts <= found for parts in NEEDED[self.kind])

    def content(self, row: Row, reading: Reading) -> str | Messages | ConversationError:
        """Return the row's text or messages, or the reason why there is none; its rule is a few words."""
        try:
            for name in UNSUPPORTED if self.kind != "text" else ():
                if row.get(name) not in (None, [], {}, "", "[]", "{}", "null"):
                    raise _bad(f"{name}, which is not supported")
            if self.kind == "text":
                return self._text(row)
            return self._pair(row, reading) if self.kind == "pair" else self._conversation(row, reading)
        except ConversationError as problem:
            return problem

    def identity(self) -> list[Any]:
        """Return the settings that decide the documents, for a fingerprint."""
        is_text = self.kind == "text"
        column = self.columns.get("text" if is_text else "messages", "text" if is_text else "")
        others = {part: name for part, name in self.columns.items() if part not in ("text", "messages")}
        return [
            column,
            not is_text,
            *([dict(sorted(others.items())), dict(self.roles)] if others or self.roles else []),
        ]

    def _fix(self, columns: Collection[str]) -> str:
        if self.kind == "text" and RowShape("conversation").has_its_parts_in(columns):
            return " Read conversations with source.conversations=true."
        if len(columns) == 1 and (sign := next((sign for sign in ";\t|" if sign in next(iter(columns))), None)):
            return f" Are its values separated otherwise? Set source.delimiter='{sign}'."
        option = (
            "columns={chosen: NAME, rejected: NAME}"
            if self.kind == "pair"
            else f"{NEEDED[self.kind][0].copy().pop()}_column=NAME"
        )
        return f" Name one with source.{option}."

    def _value(self, row: Row, part: str) -> Any:
        return next((row[name] for name in self.candidates(part) if row.get(name) is not None), None)

    def _text(self, row: Row) -> str:
        (name,) = self.candidates("text")
        if name not in row:
            raise _bad(f"no {name} in the row")
        if row[name] is None:
            raise _bad("null text")
        if not isinstance(row[name], str):
            raise _bad(f"{name} is {type(row[name]).__name__} instead of text")
        return row[name]

    def _conversation(self, row: Row, reading: Reading) -> Messages:
        value = self._value(row, "messages")
        if value is not None:
            return tuple(self._messages(value, reading))
        prompt, completion = self._value(row, "prompt"), self._value(row, "completion")
        if prompt is None or completion is None:
            raise _bad("null messages" if any(name in row for name in self.candidates("messages")) else "no messages")
        if isinstance(prompt, str) and isinstance(more := self._value(row, "input"), str) and more.strip():
            prompt = f"{prompt}\n\n{more}"
        return (*self._turns(prompt, USER, reading, row), *self._turns(completion, ASSISTANT, reading))

    def _pair(self, row: Row, reading: Reading) -> Messages:
        """Return the preferred conversation, with the other answer under a key of its last turn."""
        given = {part: self._value(row, part) for part in ("prompt", "chosen", "rejected")}
        missing = [part for part in ("chosen", "rejected") if not given[part]]
        if missing:
            raise _bad(f"no {' and '.join(missing)}")
        if given["prompt"] is None and isinstance(given["chosen"], str) and isinstance(given["rejected"], str):
            given = _split_texts(given["chosen"], given["rejected"])
        prompt = [] if not given["prompt"] else self._turns(given["prompt"], USER, reading, row)
        chosen, rejected = (self._turns(given[part], ASSISTANT, reading) for part in ("chosen", "rejected"))
        shared = 0
        while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
            shared += 1
        if shared:  # whole conversations: what they share contains the prompt, or follows it
            repeats = not prompt or prompt[-1].get("content") in [turn.get("content") for turn in chosen[:shared]]
            prompt = [*([] if repeats else prompt), *chosen[:shared]]
            chosen, rejected = chosen[shared:], rejected[shared:]
        for part, answer in (("chosen", chosen), ("rejected", rejected)):
            if len(answer) != 1 or answer[0].get("role") != ASSISTANT:
                raise _bad(f"{part} is not the assistant's one answer to the prompt")
            read_conversation(prompt, for_answer=True)
            read_conversation([*prompt, *answer])
        if chosen[0].get("content") == rejected[0].get("content"):
            raise _bad("chosen and rejected are equal")
        return (*prompt, {**chosen[0], REJECTED: rejected})

    def _turns(self, value: Any, role: str, reading: Reading, row: Row | None = None) -> list[Mapping[str, Any]]:
        """Return messages as they are, a text as a message of the role after the row's system text and history."""
        if not isinstance(value, str):
            if row is not None and self._value(row, "history"):
                raise _bad("history next to a prompt of messages")
            return self._messages([value] if isinstance(value, Mapping) else value, reading)
        system = self._value(row, "system") if row is not None else None
        before = [{"role": SYSTEM, "content": system}] if isinstance(system, str) and system.strip() else []
        return [*before, *(self._history(row) if row is not None else ()), {"role": role, "content": value}]

    def _history(self, row: Row) -> list[Mapping[str, Any]]:
        """Return the turns of earlier questions, each with its answer; text is read as JSON, for tables of text."""
        value = self._value(row, "history")
        try:
            rounds: Any = (foreign_json.parse(value) if value.strip() else None) if isinstance(value, str) else value
            return [
                {"role": role, "content": text}
                for pair in rounds or ()
                for question, answer in [cast("Any", pair if isinstance(pair, (list, tuple)) else ())]
                for role, text in ((USER, question), (ASSISTANT, answer))
            ]
        except (TypeError, ValueError) as problem:
            raise _bad("history is not a list of questions and answers") from problem

    def _messages(self, value: Any, reading: Reading) -> list[Mapping[str, Any]]:
        """Return messages with our roles; text is read as JSON, for tables of text."""
        if isinstance(value, str):
            try:
                value = foreign_json.parse(value)
            except ValueError as problem:
                raise _bad("messages are not JSON") from problem
        if not isinstance(value, (list, tuple)):
            raise _bad(f"messages are {type(value).__name__} instead of a list")
        if not value:
            raise _bad("no messages")
        return [self._message(message, reading) for message in cast("list[object]", value)]

    def _message(self, given: object, reading: Reading) -> Mapping[str, Any]:
        if not isinstance(given, Mapping):
            raise _bad("a message without keys")
        message = cast("Mapping[str, Any]", given)
        is_share_gpt = not isinstance(message.get("role"), str)
        role, content = (message.get("from"), message.get("value")) if is_share_gpt else (message["role"], None)
        if not isinstance(role, str) or (is_share_gpt and "value" not in message):
            raise _bad("a message without role")
        known = (MESSAGE_KEYS | IGNORED_KEYS) if not is_share_gpt else {"from", "value", "weight", "train"}
        reading.unknown_keys.update(
            key for key, held in message.items() if held is not None and key not in known and key != REJECTED
        )
        ours = self.roles.get(role, USUAL_ROLES.get(role, role))
        if not is_share_gpt:
            return message if ours == role else {**message, "role": ours}
        weights = {key: message[key] for key in ("weight", "train") if key in message}
        if ours == FUNCTION_CALL:
            try:
                return {
                    "role": ASSISTANT,
                    "content": None,
                    "tool_calls": [foreign_json.parse(content or "")],
                    **weights,
                }
            except (ValueError, TypeError) as problem:
                raise _bad("malformed tool call") from problem
        return {"role": ours, "content": content, **weights}


def shape_of(
    *,
    text_column: str | None,
    messages_column: str | None,
    columns: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    conversations: bool = False,
) -> RowShape:
    """Return the shape that these settings ask for; without any, the text in a column `text`.

    `conversations` takes the usual columns of conversations.
    """
    asked = {"text": text_column, "messages": messages_column}
    named = {**(columns or {}), **{part: name for part, name in asked.items() if name is not None}}
    if conversations and "text" in named:
        fix = "set source.columns={prompt: NAME, completion: NAME}, or source.messages_column=NAME"
        rule = "must be null with source.conversations=true (task=sft)"
        raise ConfigurationError(f"{_key('text')}: {rule}, got {named['text']}; {fix}.")
    kind = "conversation" if conversations or any(part != "text" for part in named) else "text"
    return RowShape(kind, named, dict(roles or {}))


def _split_texts(chosen: str, rejected: str) -> dict[str, Any]:
    """Take the shared beginning of two texts, up to a space, as their prompt; what follows must be one answer each."""
    shared = os.path.commonprefix([chosen, rejected])  # noqa: RUF071  (of characters)
    shared = shared[: max(shared.rfind(" "), shared.rfind("\n")) + 1]
    parts = {"prompt": shared.strip(), "chosen": chosen[len(shared) :], "rejected": rejected[len(shared) :]}
    for part in ("chosen", "rejected"):
        if NEXT_TURN.search(parts[part]):
            raise _bad(f"{part} is not the assistant's one answer to the prompt")
    return parts


def _key(part: str) -> str:
    return {"text": "source.text_column", "messages": "source.messages_column"}.get(part, f"source.columns.{part}")


def _bad(rule: str) -> ConversationError:
    return ConversationError("the row", rule, "correct it, or leave it out")
