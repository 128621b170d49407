import asyncio
import queue
import threading

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.serving.engine_thread import EngineWorker, Exchange, QueueFull
from lmtrain.serving.metrics import ServerMetrics
from tests.inference.cached import build, engine, greedy, prompts, uncached


@pytest.fixture
def worker():
    one = EngineWorker(engine(build("llama"), num_texts=2), num_waiting=1)
    yield one
    one.stop()


def heard(deltas):
    """Return what a listener hears up to the end of a text."""
    pieces = [deltas.get(timeout=30)]
    while pieces[-1] is not None and pieces[-1].finish_reason is None:
        pieces.append(deltas.get(timeout=30))
    return pieces


def test_a_listener_hears_every_piece(worker):
    (prompt,), deltas = prompts(5), queue.SimpleQueue()
    worker.submit([worker.prepare(greedy(prompt, 9))], deltas.put)
    assert [delta.token for delta in heard(deltas)] == uncached(build("llama"), prompt, 9)
    assert (worker.num_running, worker.num_queued, worker.cache_share) == (0, 0, 0)


def test_more_than_may_wait_are_refused(worker):
    written_on = threading.Event()
    worker.submit([worker.prepare(greedy([1], 1)) for _ in range(3)], lambda _: written_on.wait(30))
    with pytest.raises(QueueFull, match="queue is full"):
        worker.submit([worker.prepare(greedy([1], 1))], lambda delta: None)
    written_on.set()
    with pytest.raises(ConfigurationError, match=r"at most 3 .*got 4"):
        worker.submit([worker.prepare(greedy([1], 1)) for _ in range(4)], lambda delta: None)


def test_whoever_waits_hears_of_a_failure(worker):
    def fail(*_):
        raise RuntimeError("out of memory")

    worker._engine.model.hidden_states = fail
    deltas = queue.SimpleQueue()
    worker.submit([worker.prepare(greedy([1], 5))], deltas.put)
    assert heard(deltas) == [None]
    assert "out of memory" in str(worker.failure)


PIECES = [bytes([65 + i]) for i in range(61)]


def exchanged(read, *lengths, num_new_tokens=9):
    """Return what a coroutine makes of the exchange of some texts, and the worker when all is over."""
    worker, metrics = EngineWorker(engine(build("llama")), num_waiting=9), ServerMetrics()

    async def run():
        asked = [worker.prepare(greedy(prompt, num_new_tokens)) for prompt in prompts(*lengths)]
        return await read(Exchange(worker, asked, metrics))

    try:
        return asyncio.run(run()), metrics, worker
    finally:
        worker.stop()


def test_pieces_name_their_text():
    async def read(exchange):
        return [(index, delta.token) async for index, delta in exchange.pieces()]

    pieces, metrics, _ = exchanged(read, 3, 7)
    for place, prompt in enumerate(prompts(3, 7)):
        assert [token for index, token in pieces if index == place] == uncached(build("llama"), prompt, 9)
    assert (metrics.prompt_tokens, metrics.new_tokens) == (10, 18)
