"""The engine in a thread of its own: requests come in from any thread, each one's pieces go to whoever listens."""

import queue
import threading
from collections.abc import Callable
from typing import final

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError
from lmtrain.inference.engine import TextEngine
from lmtrain.inference.generation import Delta, Generation, Request

Listener = Callable[[Delta | None], None]


class QueueFull(RuntimeError):
    """More requests wait than may wait."""


@final
class EngineWorker:
    """Steps an engine while anyone waits for a token. A listener hears each piece, and None where the engine failed."""

    def __init__(self, engine: TextEngine, *, num_waiting: int) -> None:
        self._engine, self._num_waiting = engine, num_waiting
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._listeners: dict[Generation, Listener] = {}
        self._num_open = 0
        self._lock = threading.Lock()
        self._is_stopped = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def num_running(self) -> int:
        """Return how many texts are written at this moment."""
        return len(self._engine.running)

    @property
    def num_queued(self) -> int:
        """Return how many texts wait for their turn."""
        return max(0, self._num_open - self.num_running)

    @property
    def cache_share(self) -> float:
        """Return the share of the cache in use by running texts."""
        return self._engine.pool.num_used / self._engine.pool.num_blocks

    def prepare(self, request: Request) -> Generation:
        """Return a request's text; raises ConfigurationError as the engine does."""
        return self._engine.prepare(request)

    def submit(self, generations: list[Generation], listener: Listener) -> None:
        """Let the texts of one request wait for their turn.

        Raises:
            ConfigurationError: They are more than an idle server takes.
            QueueFull: Too many wait already.
        """
        most = self._num_waiting + self._engine.limits.num_texts
        if len(generations) > most:
            raise ConfigurationError(
                f"{len(generations)} texts in one request are more than this server takes; nearest valid: {most}."
            )
        with self._lock:
            if self._num_open + len(generations) > most:
                raise QueueFull(f"waiting already: {format_count(self.num_queued, 'text')}; try again in a while.")
            self._num_open += len(generations)

        def add() -> None:
            for generation in generations:
                self._listeners[generation] = listener
                self._engine.waiting.add(generation)

        self._commands.put(add)

    def cancel(self, generations: list[Generation]) -> None:
        """End texts without a reader; the ended ones stay as they are."""

        def end() -> None:
            for generation in generations:
                if generation in self._listeners:
                    self._engine.cancel(generation)
                    self._forget(generation)

        self._commands.put(end)

    def stop(self) -> None:
        """End the thread after its current step."""
        self._commands.put(self._end)
        self._thread.join()

    def _end(self) -> None:
        self._is_stopped = True

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                self._turn()
            except Exception as problem:  # noqa: BLE001  # whoever waits must hear of it, whatever it is
                self.failure = problem
                for listener in set(self._listeners.values()):
                    listener(None)
                return

    def _turn(self) -> None:
        """Do the waiting commands, then one step."""
        while not self._commands.empty() or (self._engine.is_idle and not self._is_stopped):
            self._commands.get()()
        for delta in self._engine.step():
            self._listeners[delta.generation](delta)
            if delta.finish_reason is not None:
                self._forget(delta.generation)

    def _forget(self, generation: Generation) -> None:
        del self._listeners[generation]
        with self._lock:
            self._num_open -= 1
