"""OpenAI's newer API, `/v1/responses`, in its basic form: a request as one of a conversation, and its answer.

https://platform.openai.com/docs/api-reference/responses. Nothing is stored: a client sends the whole conversation.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, final

from pydantic import Field

from lmtrain.inference.generation import Delta, Generation
from lmtrain.serving.body import (
    Body,
    ChatBody,
    Choice,
    Count,
    NumLikeliest,
    RequestBody,
    RequestRefused,
    Share,
    ToolChoice,
    read,
)
from lmtrain.serving.openai_answers import calls_of, usage


def _nested(given: Any) -> Any:
    """Return a flat description of a schema as chat requests have it."""
    if not isinstance(given, Mapping) or given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}


class TextSettings(Body):
    """The form of the answer's text."""

    format: Any = {"type": "text"}  # noqa: RUF012
    verbosity: Literal["medium"] = "medium"


class ResponseBody(RequestBody):
    """A request to `/v1/responses`; `stream_options` and `reasoning` change nothing."""

    input: Any
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Share = 1.0
    text: TextSettings = TextSettings()
    tools: list[dict[str, Any]] = Field([])
    tool_choice: Choice = ToolChoice()
    parallel_tool_calls: bool = True
    stream_options: Any = None
    background: Literal[False] = False
    include: Annotated[list[Any], Field(max_length=0)] = Field([])
    top_logprobs: Annotated[NumLikeliest, Field(le=0)] = 0
    truncation: Literal["disabled"] = "disabled"
    reasoning: Any = None

    def as_chat(self) -> ChatBody:
        """Return the request as one of a conversation.

        Raises:
            DataError: An item of the input or a tool is of another kind.
        """
        tools = [
            {"type": tool.get("type"), "function": {name: value for name, value in tool.items() if name != "type"}}
            for tool in self.tools
        ]
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return read(
            {
                "messages": [*system, *_messages(self.input)],
                "max_tokens": self.max_output_tokens,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "tools": tools,
                "tool_choice": self.tool_choice,
                "response_format": _nested(self.text.format),
                "stream": self.stream,
            },
            ChatBody,
        )


def _messages(given: Any) -> list[dict[str, Any]]:
    """Return a text, or items of messages, calls and their results, as messages of a chat."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise RequestRefused("input", "must be a text or a list of items.", code="invalid_type")
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(given):
        match item.get("type", "message"):
            case "message":
                messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
            case "function_call":
                call = {"function": {"name": item.get("name"), "arguments": item.get("arguments")}}
                if not (messages and messages[-1]["role"] == "assistant"):
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append({"role": "tool", "content": _content(item.get("output"))})
            case "reasoning":
                pass
            case kind:
                raise RequestRefused(f"input[{place}].type", f"{str(kind)[:80]} is not supported.")
    return messages


def _content(given: Any) -> Any:
    """Return parts of input and output as parts of text."""
    if not isinstance(given, list):
        return given
    texts = ("input_text", "output_text")
    return [
        {**part, "type": "text"} if isinstance(part, dict) and part.get("type") in texts else part for part in given
    ]


@final
class ResponseWriting:
    """One answer: a message where it has text, and an item for each call in it; `asked` is the request."""

    ends_with_done: ClassVar = False

    def __init__(self, *, model: str, asked: ResponseBody) -> None:
        self._model, self._asked = model, asked
        self._created, self._key = int(time.time()), uuid.uuid4().hex
        self._num_events, self._has_message = 0, False

    def whole(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Return the answer when it has ended."""
        (generation,) = generations
        is_cut = generation.finish_reason == "length"
        counts = usage(generations)
        counts = {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        }
        output = [*self._message(generation), *self._calls(generation)]
        frame = self._frame("incomplete" if is_cut else "completed", output)
        return {**frame, "usage": counts, "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None}

    def begin(self, generations: Sequence[Generation]) -> Iterator[dict[str, Any]]:
        """Yield the events before the first token."""
        del generations
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._frame("in_progress", []))

    def more(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the events of an addition to the text."""
        if not delta.text and (delta.finish_reason is None or delta.generation.calls):
            return
        where = {"item_id": f"msg_{self._key}", "output_index": index, "content_index": 0}
        if not self._has_message:
            self._has_message = True
            yield self._event("response.output_item.added", output_index=index, item=self._item("in_progress", []))
            yield self._event("response.content_part.added", **where, part=_part(""))
        yield self._event("response.output_text.delta", **where, delta=delta.text, logprobs=[])

    def end(self, generations: Sequence[Generation]) -> Iterator[dict[str, Any]]:
        """Yield the events after the last token; none where the engine failed."""
        (generation,) = generations
        if generation.finish_reason is None:
            return
        response = self.whole(generations)
        for place, item in enumerate(response["output"]):
            where = {"output_index": place, "item_id": item["id"]}
            if item["type"] == "message":
                (part,) = item["content"]
                where["content_index"] = 0
                yield self._event("response.output_text.done", **where, text=part["text"], logprobs=[])
                yield self._event("response.content_part.done", **where, part=part)
            else:
                started = {**item, "arguments": "", "status": "in_progress"}
                yield self._event("response.output_item.added", output_index=place, item=started)
                yield self._event("response.function_call_arguments.delta", **where, delta=item["arguments"])
                done = {"name": item["name"], "arguments": item["arguments"]}
                yield self._event("response.function_call_arguments.done", **where, **done)
            yield self._event("response.output_item.done", output_index=place, item=item)
        yield self._event(f"response.{response['status']}", response=response)

    def _event(self, kind: str, **content: Any) -> dict[str, Any]:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **content}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": f"msg_{self._key}", "type": "message", "status": status, "role": "assistant", "content": content}

    def _message(self, generation: Generation) -> list[dict[str, Any]]:
        """Return the message; none where the answer is calls alone."""
        text = generation.text
        return [] if generation.calls and not text else [self._item("completed", [_part(text)])]

    def _calls(self, generation: Generation) -> list[dict[str, Any]]:
        return [
            {"id": f"fc_{id_[5:]}", "type": "function_call", "status": "completed", "call_id": id_, **function}
            for id_, function in calls_of(generation, self._key)
        ]

    def _frame(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        asked = self._asked.model_dump(
            include={"instructions", "max_output_tokens", "temperature", "top_p", "tools", "metadata", "truncation"}
            | {"parallel_tool_calls", "user", "reasoning", "text"}
        )
        choice = self._asked.tool_choice
        return {
            **asked,
            "id": f"resp_{self._key}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "previous_response_id": None,
            "tool_choice": {"type": "function", "name": choice.name} if choice.name else choice.mode,
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
