"""One person's conversation with a model: its turns, the next answer piece by piece, its file."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.inference.chat_format import chat_format
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Delta, Generation, Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling_settings import Sampling
from lmtrain.inference.tools.style_tools import Tool


@final
class ChatSession:
    """Turns as `messages`, the last one an answer once it is there; the oldest are left out where the context ends."""

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
            ConfigurationError: It is below 0 or no number.
        """
        self.sampling = replace(self.sampling, temperature=temperature)

    def save(self, path: Path) -> None:
        """Append the conversation to a file of JSON lines, as `data` of conversations is read.

        Raises:
            EnvironmentProblem: The file cannot be written.
        """
        line = json.dumps({"messages": [*self._told(), *self.messages]}, ensure_ascii=False)
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

    def _told(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self.system}] if self.system.strip() else []

    def _prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the ids of as much of the conversation as leaves room for an answer."""
        context = self._loaded.model.max_context_tokens
        room = min(self._num_new_tokens, context // 4)
        questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
        for first in (place for place in questions if place >= self.num_left_out):
            prompt = self.format.prompt([*self._told(), *messages[first:]])
            if len(prompt) + room <= context:
                self.num_left_out = first
                return prompt
        prompt = self.format.prompt([*self._told(), messages[-1]])
        if len(prompt) < context:
            self.num_left_out = len(messages) - 1
            return prompt
        raise ConfigurationError(
            f"this message has {len(prompt)} tokens with its frame; the model's context is {context}: shorten it."
        )


def _answer(generation: Generation) -> Iterator[dict[str, Any]]:
    """Yield an answer's messages: its calls, their results, its last words."""
    for turn in generation.tool_turns:
        calls = [{"name": each.call.name, "arguments": dict(each.call.arguments)} for each in turn.results]
        yield {"role": "assistant", "content": turn.text, "tool_calls": calls}
        yield from ({"role": "tool", "content": each.result} for each in turn.results)
    yield {"role": "assistant", "content": generation.last_words.strip()}
