"""A model's calls in the way of its chat style, between tokens or in words, answered within its answer."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from lmtrain.inference.generation import ToolResult
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat import encode_segments
from lmtrain.tokenizers.chat_styles import ChatStyle
from lmtrain.tokenizers.conversation import ConversationError, ToolCall, read_call

Tool = Callable[..., Any]
ERROR = "error"
MAX_CALL_BYTES = 4096
MAX_RESULT_CHARACTERS = 2000


@final
class StyleTools:
    """Tools by name; any failed call gets the result `error`."""

    def __init__(self, tokenizer: Tokenizer, style: ChatStyle, tools: Mapping[str, Tool]) -> None:
        """Take a style with its tokens in the tokenizer."""
        specials, tokens = tokenizer.special_tokens, style.call_tokens
        self.call_tokens = None if tokens is None else (specials[tokens[0]], specials[tokens[1]])
        self.call_words = style.call_words
        self.turn_end = specials[style.end]
        self._tokenizer, self._style, self._tools = tokenizer, style, tools
        self._pieces = tokenizer.bytes_of_ids()

    def answer(self, turn: Sequence[int]) -> tuple[Sequence[ToolResult], Sequence[int]]:
        """Return the results of a turn's calls, in order, and the ids up to the model's next words."""
        calls = self._calls(turn) if self.call_words is None else self.call_words.calls(self._bytes(turn))
        results = [self._result(content) for content in calls]
        if not results:
            return (), ()
        segments = self._style.results([each.call for each in results], [each.result for each in results])
        return results, encode_segments(self._tokenizer, segments)

    def _calls(self, turn: Sequence[int]) -> Iterator[bytes]:
        """Yield the text between the call tokens; a call without its end is none."""
        assert self.call_tokens is not None
        start: int | None = None
        for place, token in enumerate(turn):
            if token == self.call_tokens[0]:
                start = place + 1
            elif token == self.call_tokens[1] and start is not None:
                yield self._bytes(turn[start:place])
                start = None

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._pieces[each] for each in tokens if each < len(self._pieces))

    def _result(self, content: bytes) -> ToolResult:
        try:
            if len(content) > MAX_CALL_BYTES:
                raise ConversationError("a tool call", f"over {MAX_CALL_BYTES} bytes", "write less")
            key = "arguments" if self.call_words is None else self.call_words.arguments_key
            call = read_call(content.decode(), arguments_key=key)
        except ValueError:  # neither text, nor JSON, nor a call: all of them are ValueErrors
            return ToolResult(ToolCall("invalid", {"text": content[:MAX_CALL_BYTES].decode(errors="replace")}), ERROR)
        try:
            return ToolResult(call, _as_text(self._tools[call.name](**call.arguments)))
        except Exception:  # noqa: BLE001  # a tool of anyone's may raise anything; the model is told of the failure
            return ToolResult(call, ERROR)


def _as_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode(errors="replace").decode()[:MAX_RESULT_CHARACTERS]
