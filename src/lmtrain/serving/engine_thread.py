"""The engine in a thread, and each HTTP request's texts on their way from there to a client, who may leave at any time.

Requests come in from any thread; each one's pieces go to its listener.
"""

import asyncio
import json
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, final

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError
from lmtrain.inference.engine import TextEngine
from lmtrain.inference.generation import Delta, Generation
from lmtrain.serving.openai_answers import Writing, error

Listener = Callable[[Delta | None], None]


class QueueFull(RuntimeError):
    """More requests wait than may wait."""


class EngineFailed(RuntimeError):
    """The engine failed; the server must be restarted."""


@final
class EngineWorker:
    """Steps an engine while anyone waits for a token. A listener gets each piece, and None if the engine fails."""

    def __init__(self, engine: TextEngine, *, num_waiting: int) -> None:
        self.engine, self._num_waiting = engine, num_waiting
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._listeners: dict[Generation, Listener] = {}
        self._num_open = 0  # texts
        self._lock = threading.Lock()
        self._is_stopped = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def num_running(self) -> int:
        """Return how many texts are written at this moment."""
        return len(self.engine.running)

    @property
    def num_queued(self) -> int:
        """Return how many texts wait for their turn."""
        return max(0, self._num_open - self.num_running)

    def submit(self, generations: list[Generation], listener: Listener) -> None:
        """Let the texts of one request wait for their turn.

        Raises:
            ConfigurationError: They are more than an idle server takes.
            QueueFull: Too many wait already.
        """
        most = self._num_waiting + self.engine.limits.num_texts
        if len(generations) > most:
            raise ConfigurationError(f"n: must ask for at most {most} texts in one request, got {len(generations)}.")
        with self._lock:
            if self._num_open + len(generations) > most:
                raise QueueFull(f"the queue is full: {format_count(self.num_queued, 'text')} waiting; try again later.")
            self._num_open += len(generations)

        def add() -> None:
            self._listeners.update(dict.fromkeys(generations, listener))
            self.engine.waiting.extend(generations)

        self._commands.put(add)

    def cancel(self, generations: list[Generation]) -> None:
        """End texts without a reader; the ended ones stay as they are."""

        def end() -> None:
            for generation in generations:
                if generation in self._listeners:
                    self.engine.cancel(generation)
                    self._forget(generation)

        self._commands.put(end)

    def stop(self) -> None:
        """End the thread after its current step."""

        def end() -> None:
            self._is_stopped = True

        self._commands.put(end)
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                self._turn()
            except Exception as problem:  # noqa: BLE001  # every listener must get to know, whatever it is
                self.failure = problem
                for listener in set(self._listeners.values()):
                    listener(None)
                return

    def _turn(self) -> None:
        """Do the waiting commands, then one step."""
        while not self._commands.empty() or (self.engine.is_idle and not self._is_stopped):
            self._commands.get()()
        for delta in self.engine.step():
            self._listeners[delta.generation](delta)
            if delta.finish_reason is not None:
                self._forget(delta.generation)

    def _forget(self, generation: Generation) -> None:
        del self._listeners[generation]
        with self._lock:
            self._num_open -= 1


@final
class Exchange:
    """The texts of one request; leaving `pieces` early ends them and frees their memory."""

    def __init__(self, worker: EngineWorker, generations: list[Generation]) -> None:
        """Let the texts wait for their turn; raises QueueFull."""
        self._worker, self._generations = worker, generations
        self._arrived: asyncio.Queue[Delta | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen(delta: Delta | None) -> None:
            with suppress(RuntimeError):  # the server ends, and so does its loop
                loop.call_soon_threadsafe(self._arrived.put_nowait, delta)

        worker.submit(generations, listen)

    async def pieces(self) -> AsyncGenerator[tuple[int, Delta]]:
        """Yield each new piece with its text's index, until all have ended; raises EngineFailed."""
        index = {generation: place for place, generation in enumerate(self._generations)}
        open_texts = set(self._generations)
        try:
            while open_texts:
                delta = await self._arrived.get()
                if delta is None:
                    raise EngineFailed(f"the engine failed: {self._worker.failure}.")
                if delta.finish_reason is not None:
                    open_texts.discard(delta.generation)
                yield index[delta.generation], delta
        finally:
            self._worker.cancel(list(open_texts))

    async def events(self, writing: Writing) -> AsyncGenerator[bytes]:
        """Yield the answer as server-sent events."""
        for event in writing.begin(self._generations):
            yield _event(event)
        try:
            async with aclosing(self.pieces()) as pieces:
                async for index, delta in pieces:
                    if delta.text or delta.finish_reason or delta.score:
                        yield _event(writing.more(index, delta))
        except EngineFailed as problem:
            yield _event(error(str(problem), kind="server_error"))
        for event in writing.end(self._generations):
            yield _event(event)
        yield b"data: [DONE]\n\n"


def _event(content: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()
