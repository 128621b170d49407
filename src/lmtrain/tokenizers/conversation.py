"""The form of a conversation: its roles, the order of its turns, and tool calls; everything else is refused.

    [system]  user  (assistant [tool ...])  user  ...

An assistant's turn may call tools; each call is answered by one tool turn before the assistant continues.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from lmtrain.errors import DataError, suggest
from lmtrain.storage import foreign_json
from lmtrain.tokenizers.base import is_unicode

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
ROLES = (SYSTEM, USER, ASSISTANT, TOOL)
OTHER_ROLES = {"developer": SYSTEM, "function": TOOL}  # of OpenAI's newer and older interface
# The keys of a message that are read, and those that change nothing here.
MESSAGE_KEYS = frozenset({"role", "content", "tool_calls", "function_call", "weight", "train"})
IGNORED_KEYS = frozenset({"name", "tool_call_id", "id", "refusal", "annotations", "audio"})


class ConversationError(DataError):
    """Messages that are not a conversation; `rule` names the broken rule in a few words."""

    def __init__(self, where: str, rule: str, fix: str) -> None:
        """Join where, the rule, and the nearest fix."""
        super().__init__(f"{where}: {rule}; {fix}.")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class ToolCall:
    """An assistant's call of a tool, with its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def as_json(self, *, arguments_key: str = "arguments") -> str:
        """Return the call on one line."""
        return json.dumps({"name": self.name, arguments_key: self.arguments}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message, checked; an assistant's turn may be excluded from the loss."""

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    has_loss: bool = True


def read_conversation(messages: Any, *, for_answer: bool = False) -> tuple[Turn, ...]:
    """Return the turns of messages as datasets have them: `role`, `content`, and an assistant's `tool_calls`.

    `messages` may be any value of a dataset. `for_answer` expects a conversation that a model is to answer, rather than
    one to learn from. An empty system message is left out; `weight: 0` or `train: false` excludes a turn from the loss.

    Raises:
        ConversationError: Not messages, or not in the order of a conversation.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or len(messages) == 0:
        raise ConversationError("messages", "not a list of messages", "give [{role: user, content: ...}, ...]")
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        turn = _read(message, index)
        if turn is not None:
            _require_order(turns, turn, index)
            turns.append(turn)
    _require_end(turns, for_answer=for_answer)
    return tuple(turns)


def read_call(text: str, *, arguments_key: str = "arguments") -> ToolCall:
    """Return an assistant's call in JSON: an object of `name` and `arguments`, or another key for them."""
    try:
        given = foreign_json.parse(text)
        if arguments_key != "arguments" and isinstance(given, Mapping):
            given = {"name": given.get("name"), "arguments": given.get(arguments_key)}
        return _call(given, 0)
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, ConversationError):
            raise
        raise ConversationError("a tool call", "not JSON", 'write {"name": ..., "arguments": {...}}') from problem


def _read(message: Any, index: int) -> Turn | None:
    """Return a message as a turn, None for an empty system message."""
    if not isinstance(message, Mapping):
        raise ConversationError(f"messages[{index}]", "a message without keys", "each has a role and content")
    role = message.get("role")
    role = OTHER_ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        near = suggest(role, ROLES) if isinstance(role, str) else ""
        raise ConversationError(
            f"messages[{index}] has role {role!r}", "unknown role", f"valid: {', '.join(ROLES)}{near}"
        )
    if role == SYSTEM and isinstance(message.get("content"), str) and not message["content"].strip():
        return None
    given = message.get("tool_calls")
    if not given and message.get("function_call"):
        given = [message["function_call"]]
    calls = _calls(given, role, index)
    text = _text(message.get("content"), role, index, may_be_empty=bool(calls) or role == TOOL)
    return Turn(str(role), text, calls, _has_loss(message, role, index))


def _has_loss(message: Mapping[str, Any], role: str, index: int) -> bool:
    for key in ("weight", "train"):
        value = message.get(key)
        if value not in (None, 0, 1):
            _refuse(index, role, f"a {key} other than 0 and 1", f"it is {value}")
        if value == 0:
            return False
    return True


def _text(content: Any, role: str, index: int, *, may_be_empty: bool) -> str:
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(_part(part, role, index) for part in content)
    if content is None and may_be_empty:
        return ""
    if not isinstance(content, str):
        _refuse(index, role, "content that is not text", f"it is {type(content).__name__}, valid: a string")
    if not content.strip() and not may_be_empty:
        _refuse(index, role, "empty content", "give it text, or leave the message out")
    if not is_unicode(content):
        _refuse(index, role, "content that is not Unicode", "correct its bytes outside UTF-8")
    return content


def _part(part: Any, role: str, index: int) -> str:
    if isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    return _refuse(index, role, "content that is not text", f"it has a part of type {kind}, valid: text")


def _calls(given: Any, role: str, index: int) -> tuple[ToolCall, ...]:
    if given is None or (isinstance(given, Sequence) and len(given) == 0):
        return ()
    if role != ASSISTANT:
        _refuse(index, role, "tool calls outside an assistant's turn", "only an assistant calls tools")
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        _refuse(index, role, "malformed tool call", "tool_calls is a list of {name: ..., arguments: {...}}")
    return tuple(_call(call, index) for call in given)


def _call(call: Any, index: int) -> ToolCall:
    """Read a call; absent or empty arguments are none."""
    inner = call.get("function", call) if isinstance(call, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    arguments = (inner.get("arguments") or {}) if isinstance(inner, Mapping) else None
    if isinstance(arguments, str):
        try:
            arguments = foreign_json.parse(arguments)
        except ValueError:
            arguments = None
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        _refuse(index, ASSISTANT, "malformed tool call", "a call has a name and a mapping of arguments")
    return ToolCall(name, dict(arguments))


def _require_order(turns: Sequence[Turn], turn: Turn, index: int) -> None:
    role, before, owed = turn.role, turns[-1].role if turns else None, _unanswered(turns)
    rules = (
        (role == SYSTEM and before, "system turn after the start", "put it first, or leave it out"),
        (role == TOOL and not owed, "tool turn without a call", "an assistant's tool_calls come before, one for each"),
        (role != TOOL and owed, "unanswered tool call", f"{owed} more of the tools' turns must come first"),
        (role == before == USER, "two user turns in a row", "an assistant's turn comes between; join them"),
        (role == before == ASSISTANT, "two assistant turns in a row", "a user's turn comes between; join them"),
        (role == ASSISTANT and before in (None, SYSTEM), "assistant turn before any user turn", "a user begins"),
    )
    for is_broken, rule, fix in rules:
        if is_broken:
            _refuse(index, role, rule, fix)


def _unanswered(turns: Sequence[Turn]) -> int:
    """Return how many of the last assistant's calls have no tool turn yet."""
    for num_answers, turn in enumerate(reversed(turns)):
        if turn.role != TOOL:
            return len(turn.calls) - num_answers
    return 0


def _require_end(turns: Sequence[Turn], *, for_answer: bool) -> None:
    if not for_answer and all(turn.role != ASSISTANT for turn in turns):
        raise ConversationError("messages", "no assistant turn", "nothing in it would be learned")
    if for_answer and (not turns or turns[-1].role not in (USER, TOOL) or _unanswered(turns)):
        role = turns[-1].role if turns else SYSTEM
        _refuse(
            len(turns) - 1, role, "nothing to answer", "the last turn must be a user's, or the last awaited tool turn"
        )


def _refuse(index: int, role: str, rule: str, fix: str) -> NoReturn:
    raise ConversationError(f"messages[{index}] (role {role})", rule, fix)
