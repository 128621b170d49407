"""Do jobs in several processes of this machine, or on a thread of this one.

A worker gets a pickled function and then pickled jobs, and answers each with its result, every one after a line with
its length; an empty answer is a failure. Its input ends with this process, and so does the worker.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar, cast

from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import EnvironmentProblem

AHEAD = 2  # jobs begun or waiting, for each process
Worker = subprocess.Popen[bytes]
Job = TypeVar("Job")
Result = TypeVar("Result")


def run_jobs(work: Callable[[Job], Result], jobs: Iterable[Job], *, num_processes: int) -> Generator[Result]:
    """Yield `work(job)` of each job in order; only a few are taken from `jobs` ahead.

    `work`, jobs and results are pickled for `num_processes` workers; 0 calls `work` on a thread of this process.

    Raises:
        EnvironmentProblem: A worker was killed.
    """
    workers: list[Worker] = []
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def run(job: Job) -> Result:
        if num_processes == 0:
            return work(job)
        worker = free.get()
        try:
            answer = _answer(worker, pickle.dumps(job))
        finally:
            free.put(worker)
        # What failed fails again, here where its error is seen.
        return cast("Result", pickle.loads(answer)) if answer else work(job)  # noqa: S301  of our own process

    executor = ThreadPoolExecutor(max_workers=max(num_processes, 1))
    begun: deque[Future[Result]] = deque()
    try:
        for job in jobs:
            if len(workers) < num_processes:
                workers.append(_start(work))
                free.put(workers[-1])
            begun.append(executor.submit(run, job))
            while begun and (len(begun) >= AHEAD * max(num_processes, 1) or begun[0].done()):
                yield begun.popleft().result()
        for future in begun:
            yield future.result()
    finally:
        for worker in workers:
            worker.kill()
        executor.shutdown(cancel_futures=True)
        for worker in workers:
            worker.communicate()


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(work: object) -> Worker:
    worker = subprocess.Popen(
        python_command("-m", "data_pipelines.processes"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=python_environment(),
        start_new_session=True,  # Ctrl-C is this process's to answer
    )
    _send(worker.stdin, pickle.dumps(work))
    return worker


def _answer(worker: Worker, job: bytes) -> bytes:
    with suppress(BrokenPipeError):  # it was killed, as the missing answer will show
        _send(worker.stdin, job)
    answer = _receive(worker.stdout)
    if answer is None:
        raise EnvironmentProblem(
            f"A worker process ended with status {worker.wait()} (out of memory?); "
            "try num_processes=0 (data.folder.* or engine.*)."
        )
    return answer


def _send(stream: Any, content: bytes) -> None:
    stream.write(f"{len(content)}\n".encode() + content)
    stream.flush()


def _receive(stream: Any) -> bytes | None:
    """Return the next content of a stream, None at its end or where it breaks off."""
    header = stream.readline()
    content = stream.read(int(header)) if header else None
    return content if content is not None and len(content) == int(header) else None


def main() -> None:
    """Answer each job on standard input once it is done or has failed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's prints are no answers
    work = pickle.loads(_receive(sys.stdin.buffer) or b"")  # noqa: S301  written by the process that started this
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs, sys.stdin.buffer), daemon=True).start()
    while True:
        job = pickle.loads(jobs.get())  # noqa: S301  likewise
        try:
            answer = pickle.dumps(work(job))
        except Exception:  # noqa: BLE001  the asking process repeats the job, and reports the error
            answer = b""
        _send(answers, answer)


def _read(jobs: "queue.SimpleQueue[bytes]", stream: BinaryIO) -> None:
    while (job := _receive(stream)) is not None:
        jobs.put(job)
    os._exit(0)


if __name__ == "__main__":
    main()
