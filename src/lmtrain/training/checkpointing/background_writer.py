"""The trainer's side of the process that writes checkpoints: copy, hand over, go on, ask how it went.

One job is in flight at most. Its copy goes into memory shared by both processes and kept for the next one.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import torch

from lmtrain.child_process import python_command, python_environment
from lmtrain.training.checkpointing.staging import SharedMemory, Staged, Staging, require_room, restore, stage
from lmtrain.training.lifetime import die_with_parent
from lmtrain.training.side_stream import page_locked, side_stream, touched

GRACE_SECONDS: Final = 5.0  # for a process without work to end
GONE: Final = (EOFError, BrokenPipeError, ConnectionResetError)
PROGRAM: Final = (
    "import sys; from lmtrain.training.checkpointing.background_writer import main; main(*map(int, sys.argv[1:]))"
)


LOWEST_PRIORITY = 19


class Reserve(NamedTuple):
    """Ask for memory, before it is needed."""

    num_bytes: int


class Answer(NamedTuple):
    """The outcome of a request: why it failed (None: it did not), its seconds, and its written bytes."""

    problem: str | None
    seconds: float
    num_bytes: int


@dataclass(frozen=True)
class _Writer:
    process: "subprocess.Popen[bytes]"
    connection: "Connection[Any, Any]"


class BackgroundWriter:
    """Calls jobs in another process; a job is any picklable callable with the written bytes as its result.

    Call `poll` now and then, `hold_compute` before the next change of a job's tensors, and `close` at the end. The
    process ends with the thread that made the first call.
    """

    def __init__(self, device: torch.device) -> None:
        self._side = side_stream(device)
        self._memory = SharedMemory(settle=page_locked if device.type == "cuda" else touched)
        self._mapping: threading.Thread | None = None
        self._writer: _Writer | None = None
        self._is_reserving = False
        self._staging: Staging | None = None  # until the copy is done
        self._is_writing = False
        self._end = "it did not start"

    @property
    def is_busy(self) -> bool:
        """Return whether a started job's answer is outstanding."""
        return self._staging is not None or self._is_writing

    def prepare(self, num_bytes: int, *, num_alike: int = 1) -> None:
        """Start the process, and let it find memory for a job of about `num_bytes`, before one comes.

        `num_alike` processes on this host need as much each.

        Raises:
            EnvironmentProblem: The host has less free memory.
        """
        if num_bytes > self._memory.num_bytes and not self._is_reserving:
            require_room(num_bytes * num_alike)
            self._send(Reserve(num_bytes))
            self._is_reserving = True

    def start(self, job: Callable[[], int]) -> None:
        """Copy a job, and have it done as soon as the copy is.

        Raises:
            EnvironmentProblem: There is not enough memory for the copy.
        """
        assert not self.is_busy, "one job at a time"
        self.poll()
        if self._mapping is not None:
            self._mapping.join()
            self._mapping = None
        self._staging = stage(job, memory=self._memory, side=self._side)
        self._hand_over_if_copied()

    def hold_compute(self) -> None:
        """Let the device change no tensor still being copied."""
        if self._staging is not None:
            self._staging.end.hold_compute()

    def poll(self) -> Answer | None:
        """Hand the job over if its copy is done; return the answer if it is there, once."""
        if self._is_reserving and self._has_answer():
            self._take_reserved()
        self._hand_over_if_copied()
        return self._receive() if self._is_writing and self._has_answer() else None

    def wait(self, *, at_most_seconds: float | None = None) -> Answer | None:
        """Wait for the job in flight and return its answer; None if there is none, or time is over."""
        if self._staging is not None:
            self._staging.end.wait()
            self._hand_over(self._staging)
        is_there = self._is_writing and self._has_answer(within_seconds=at_most_seconds)
        return self._receive() if is_there else None

    def close(self) -> None:
        """End the process, in the middle of a job too, and give the memory back."""
        if self._mapping is not None:
            self._mapping.join()
        if self._writer is not None:
            with contextlib.suppress(*GONE):
                self._writer.connection.send(None)
            if self.is_busy:
                self._writer.process.kill()
            self._reap()
        self._memory.close()

    def _hand_over_if_copied(self) -> None:
        if self._staging is not None and self._staging.end.is_past():
            self._hand_over(self._staging)

    def _hand_over(self, staging: Staging) -> None:
        self._staging, self._is_writing = None, True
        self._send(staging.staged)

    def _send(self, request: object) -> None:
        """Ask the process, or a new one where it has ended; `_receive` reports the end of that one too."""
        for _ in range(2):
            if self._writer is None:
                self._writer = _start_writer(self._memory)
            try:
                self._writer.connection.send(request)
            except GONE:
                self._reap()
            else:
                return

    def _has_answer(self, *, within_seconds: float | None = 0.0) -> bool:
        return self._writer is None or self._writer.connection.poll(within_seconds)

    def _receive(self) -> Answer:
        """Take the answer to the job; an answer to an earlier call for memory, not waited for, comes first."""
        if self._is_reserving:
            self._take_reserved()
        self._is_writing = False
        return self._next_answer()

    def _take_reserved(self) -> None:
        """Map the process's memory, on a thread: locking it takes CUDA seconds.

        Where it found none, or a job came first, `start` found its own, or said why not.
        """
        self._is_reserving = False
        if self._next_answer().problem is None and not self.is_busy:
            found = os.fstat(self._memory.descriptor).st_size
            self._mapping = threading.Thread(target=self._memory.reserve, args=(found,), name="checkpoint memory")
            self._mapping.start()

    def _next_answer(self) -> Answer:
        try:
            if self._writer is not None:
                return self._writer.connection.recv()
        except GONE:
            self._reap()
        return Answer(f"the process that writes checkpoints ended ({self._end})", 0.0, 0)

    def _reap(self) -> None:
        """Wait for the process to end, and remember how it did."""
        if self._writer is None:
            return
        process, self._writer = self._writer.process, self._writer.connection.close()
        try:
            code = process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._end = f"signal {-code}" if code < 0 else f"exit code {code}"


def _start_writer(memory: SharedMemory) -> _Writer:
    """Start the process afresh rather than fork it: CUDA and threads do not survive a fork."""
    ours, theirs = Pipe()
    descriptors = (theirs.fileno(), memory.descriptor)
    process = subprocess.Popen(
        python_command("-c", PROGRAM, *map(str, descriptors), str(os.getpid())),
        pass_fds=descriptors,
        env={**python_environment(), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a signal to the group is for the trainer, and the trainer waits for this process
    )
    theirs.close()
    return _Writer(process, ours)


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
