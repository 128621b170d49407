import queue

import pytest

from lmtrain.serving.engine_thread import EngineWorker
from tests.inference.cached import build, engine, greedy


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


def test_whoever_waits_hears_of_a_failure(worker):
    def fail(*_):
        raise RuntimeError("out of memory")

    worker.engine.model.hidden_states = fail
    deltas = queue.SimpleQueue()
    worker.submit([worker.engine.prepare(greedy([1], 5))], deltas.put)
    assert heard(deltas) == [None]
    assert "out of memory" in str(worker.failure)
