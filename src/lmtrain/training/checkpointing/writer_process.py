"""The process for writing checkpoints while training goes on.

It takes requests from the trainer's pipe, serves them, and answers; it ends with the trainer, and never sees its GPUs.
It unpickles only its parent's objects, from memory without a name.
"""

import contextlib
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from lmtrain.training.checkpointing.shared_memory import SharedMemory
from lmtrain.training.checkpointing.staging import Staged, restore
from lmtrain.training.lifetime import die_with_parent

LOWEST_PRIORITY = 19


class Reserve(NamedTuple):
    """Ask for memory, before it is needed."""

    num_bytes: int


class Answer(NamedTuple):
    """The outcome of a request: why it failed (None: it did not), its seconds, and its written bytes."""

    problem: str | None
    seconds: float
    num_bytes: int


def serve(connection: "Connection[Any, Any]", memory: SharedMemory) -> None:
    """Serve the connection's requests, one after another, until None or its end."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while (request := connection.recv()) is not None:
            connection.send(answer(request, memory))


def answer(request: Reserve | Staged, memory: SharedMemory) -> Answer:
    """Reserve memory, or call the job staged there, with the written bytes as its result."""
    began, num_bytes, problem = time.perf_counter(), 0, None
    try:
        if isinstance(request, Reserve):
            memory.reserve(request.num_bytes)
        else:
            num_bytes = restore(request, memory=memory)()
    except (OSError, RuntimeError) as failure:  # torch turns ENOSPC into a RuntimeError
        problem = str(failure) or repr(failure)
    return Answer(problem, time.perf_counter() - began, num_bytes)


def main(connection: int, memory: int, parent: int) -> None:
    """Serve the process `parent` over a descriptor of a connection and one of memory."""
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # they are for the trainer: it waits for this process
    os.nice(LOWEST_PRIORITY)
    serve(Connection(connection), SharedMemory(memory))
    os._exit(0)  # the trainer waits for the end, and torch takes a second to clear up
