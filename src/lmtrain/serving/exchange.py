"""One HTTP request's texts on their way from the engine's thread to the client, who may leave at any time."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import final

from lmtrain.inference.generation import Delta, Generation
from lmtrain.serving.engine_thread import EngineWorker
from lmtrain.serving.metrics import ServerMetrics
from lmtrain.serving.openai_answers import Writing, error


class EngineFailed(RuntimeError):
    """The engine has ended with an error; the server has to be started again."""


@final
class Exchange:
    """The texts of one request; leaving `pieces` early ends them and frees their memory."""

    def __init__(self, worker: EngineWorker, generations: list[Generation], metrics: ServerMetrics) -> None:
        """Let the texts wait for their turn; raises QueueFull."""
        self._worker, self._generations, self._metrics = worker, generations, metrics
        self._arrived: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._began = time.monotonic()
        self._spoke: dict[Generation, float] = {}
        loop = asyncio.get_running_loop()

        def listen(delta: Delta | None) -> None:
            with suppress(RuntimeError):  # the server ends, and so does its loop
                loop.call_soon_threadsafe(self._arrived.put_nowait, delta)

        worker.submit(generations, listen)
        metrics.prompt_tokens += sum(len(generation.request.prompt) for generation in generations)

    async def pieces(self) -> AsyncGenerator[tuple[int, Delta]]:
        """Yield each new piece with its text's index, until all have ended; raises EngineFailed."""
        index = {generation: place for place, generation in enumerate(self._generations)}
        open_texts = set(self._generations)
        try:
            while open_texts:
                delta = await self._arrived.get()
                if delta is None:
                    raise EngineFailed(f"the engine failed: {self._worker.failure}.")
                self._measure(delta)
                if delta.finish_reason is not None:
                    open_texts.discard(delta.generation)
                yield index[delta.generation], delta
        finally:
            self._worker.cancel(list(open_texts))
            self._metrics.histograms["request_seconds"].add(time.monotonic() - self._began)

    async def events(self, writing: Writing, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Yield the answer as server-sent events."""
        if writing.is_chat:
            for index in range(len(self._generations)):
                yield _event(writing.first(index))
        try:
            async with aclosing(self.pieces()) as pieces:
                async for index, delta in pieces:
                    if delta.text or delta.finish_reason or delta.score:
                        yield _event(writing.chunk(index, delta))
        except EngineFailed as problem:
            yield _event(error(str(problem), kind="server_error"))
        if include_usage:
            yield _event(writing.last(self._generations))
        yield b"data: [DONE]\n\n"

    def _measure(self, delta: Delta) -> None:
        now, generation = time.monotonic(), delta.generation
        before = self._spoke.get(generation)
        name = "time_to_first_token_seconds" if before is None else "time_per_token_seconds"
        self._metrics.histograms[name].add(now - (self._began if before is None else before))
        self._spoke[generation] = now
        self._metrics.new_tokens += 1


def _event(content: object) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()
