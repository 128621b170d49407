"""A server of a small model on a loopback port, in this process."""

import socket
import threading
import time
from contextlib import contextmanager

import httpx

from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.models.llama import Llama
from lmtrain.serving.app import ServerSettings, build_app
from lmtrain.serving.engine_thread import EngineWorker
from lmtrain.serving.http_server import http_server
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.inference.cached import LLAMA, noisy

CONTEXT = 256


def small_model():
    sizes = {**LLAMA, "vocab_size": 300, "max_context_tokens": CONTEXT}
    tokenizer = ByteLevelTokenizer(vocab_size=300, chat=True)
    return LoadedModel(name="small", model=noisy(Llama(**sizes)), tokenizer=tokenizer, end_ids=frozenset({256}))


@contextmanager
def served(loaded=None, *, num_texts=4, num_waiting=200, header_seconds=10.0, **settings):
    """Serve until the block ends; gives a client of its address, whose `worker` is the engine's, `server` uvicorn's."""
    loaded = loaded or small_model()
    worker = EngineWorker(loaded.engine(EngineLimits(num_texts=num_texts)), num_waiting=num_waiting)
    app = build_app(loaded, worker, ServerSettings(**settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = http_server(app, host="127.0.0.1", port=port, drain_seconds=5, header_seconds=header_seconds)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            client.worker, client.server = worker, server
            yield client
    finally:
        server.should_exit = True
        thread.join()
        worker.stop()
