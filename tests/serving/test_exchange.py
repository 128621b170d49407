import asyncio
import json
from contextlib import aclosing

from lmtrain.serving.engine_thread import EngineWorker
from lmtrain.serving.exchange import Exchange
from lmtrain.serving.metrics import ServerMetrics
from lmtrain.serving.openai_answers import Writing
from tests.inference.cached import build, engine, greedy, prompts, uncached

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


def test_leaving_early_frees_the_memory():
    async def read(exchange):
        async with aclosing(exchange.pieces()) as pieces:
            return await anext(pieces)

    _, _, worker = exchanged(read, 4, num_new_tokens=40)
    assert (worker.num_running, worker.num_queued, worker.cache_share) == (0, 0, 0)


def test_a_stream_says_who_speaks_and_when_it_ends():
    async def read(exchange):
        writing = Writing(model="m", is_chat=True, pieces=PIECES)
        return [event async for event in exchange.events(writing, include_usage=True)]

    events, _, _ = exchanged(read, 4)
    parts = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert parts[-1]["usage"]["completion_tokens"] == 9
    assert events[-1] == b"data: [DONE]\n\n"
