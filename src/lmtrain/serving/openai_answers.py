"""A server's answers, in the words of OpenAI's API: whole answers, chunks of a stream, log-probabilities, errors."""

import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from lmtrain.inference.generation import Delta, Generation, TokenScore


@final
@dataclass(frozen=True, kw_only=True)
class Writing:
    """One answer's frame: its id, its time of request, its model, its form of the two.

    `pieces` are the bytes of every token; `echoes` puts the prompt before each completion, and `counts` the numbers of
    tokens at the end of a stream.
    """

    model: str
    is_chat: bool
    pieces: Sequence[bytes]
    echoes: bool = False
    counts: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def whole(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Return the answer when all of its texts have ended."""
        choices = [self._choice(index, generation) for index, generation in enumerate(generations)]
        return {**self._frame(), "choices": choices, "usage": usage(generations)}

    def begin(self, generations: Sequence[Generation]) -> Iterator[dict[str, Any]]:
        """Yield the chunks before the first tokens."""
        for index, generation in enumerate(generations):
            if self.is_chat:
                yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}, "logprobs": None}, None)
            elif self.echoes:
                yield self._chunk(index, {"text": self._prompt(generation), "logprobs": None}, None)

    def more(self, index: int, delta: Delta) -> dict[str, Any]:
        """Return the chunk of an addition to a text."""
        said: dict[str, Any] = {"delta": {"content": delta.text}} if self.is_chat else {"text": delta.text}
        if delta.finish_reason is not None and self.is_chat:
            said["delta"] |= self._calls(delta.generation)
        said["logprobs"] = None if delta.score is None else self._scores([delta.score])
        return self._chunk(index, said, delta.finish_reason)

    def end(self, generations: Sequence[Generation]) -> Iterator[dict[str, Any]]:
        """Yield the chunk of token counts, without a text."""
        if self.counts:
            yield {**self._frame(chunk=True), "choices": [], "usage": usage(generations)}

    def _choice(self, index: int, generation: Generation) -> dict[str, Any]:
        calls = self._calls(generation)
        text = generation.text.rstrip() or None if calls else generation.text
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text, **calls}}
        if not self.is_chat:
            said = {"text": self._prompt(generation) + generation.text if self.echoes else generation.text}
        scores = self._scores(generation.scores) if generation.scores else None
        if scores is not None and generation.request.scores_prompt:  # its first token follows nothing
            first = {"tokens": self._name(generation.tokens[0]), "token_logprobs": None, "top_logprobs": None}
            scores = {name: [value, *scores[name]] for name, value in first.items()}
        return {"index": index, **said, "logprobs": scores, "finish_reason": generation.finish_reason}

    def _calls(self, generation: Generation) -> dict[str, Any]:
        calls = [
            {
                "index": place,
                "id": f"call_{self.key[:16]}_{generation.request.index}_{place}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for place, call in enumerate(generation.calls)
        ]
        return {"tool_calls": calls} if calls else {}

    def _prompt(self, generation: Generation) -> str:
        return b"".join(map(self._bytes, generation.request.prompt)).decode(errors="replace")

    def _chunk(self, index: int, said: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
        return {**self._frame(chunk=True), "choices": [{"index": index, **said, "finish_reason": finish_reason}]}

    def _frame(self, *, chunk: bool = False) -> dict[str, Any]:
        name = "chat.completion" if self.is_chat else "text_completion"
        kind = f"{name}.chunk" if chunk and self.is_chat else name
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {"id": f"{prefix}-{self.key}", "object": kind, "created": self.created, "model": self.model}

    def _scores(self, scores: Sequence[TokenScore]) -> dict[str, Any]:
        if self.is_chat:
            return {"content": [self._scored(score) for score in scores]}
        return {
            "tokens": [self._name(score.token) for score in scores],
            "token_logprobs": [score.log_probability for score in scores],
            "top_logprobs": [  # by their texts; of equal ones, such as none, the likelier
                {self._name(token): value for token, value in reversed(score.likeliest)} for score in scores
            ],
        }

    def _scored(self, score: TokenScore) -> dict[str, Any]:
        near = [self._token(token, value) for token, value in score.likeliest]
        return {**self._token(score.token, score.log_probability), "top_logprobs": near}

    def _token(self, token: int, value: float) -> dict[str, Any]:
        return {"token": self._name(token), "logprob": value, "bytes": list(self._bytes(token))}

    def _name(self, token: int) -> str:
        return self._bytes(token).decode(errors="replace")

    def _bytes(self, token: int) -> bytes:
        return self.pieces[token] if token < len(self.pieces) else b""


def usage(generations: Sequence[Generation]) -> dict[str, Any]:
    """Count tokens: those of a prompt once, and as its first text found them, however many texts go on from it."""
    prompts = {id(generation.request.prompt): len(generation.request.prompt) for generation in generations}
    num_prompt, num_new = sum(prompts.values()), sum(len(generation.new_tokens) for generation in generations)
    cached = {id(generation.request.prompt): generation.num_shared for generation in reversed(generations)}
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_new,
        "total_tokens": num_prompt + num_new,
        "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
    }


def error(
    message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return a refusal as OpenAI's clients read it; `param` None takes the key at the message's start."""
    found = re.match(r"(\w+(?:\[\d+\])?)(?: \(role \w+\)| has role [^:]*)?: ", message)
    param = param or (found[1] if found else None)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
