"""Do jobs in several processes of this machine, or on a thread of this one.

A worker gets a pickled function and then a job a line, and answers each line. Its input ends with this process, and so
does the worker.
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

from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import EnvironmentProblem

AHEAD = 2  # jobs begun or waiting, for each process
DONE, FAILED = b"done\n", b"failed\n"
Worker = subprocess.Popen[bytes]


def run_jobs(work: Callable[[str], object], jobs: Iterable[str], *, num_processes: int) -> Generator[str]:
    """Yield the jobs in order, each after `work(job)`; only a few are taken from `jobs` ahead.

    `work` is pickled for `num_processes` workers; 0 calls it on a thread of this process.

    Raises:
        EnvironmentProblem: A worker was killed.
    """
    workers: list[Worker] = []
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def run(job: str) -> str:
        if num_processes == 0:
            work(job)
            return job
        worker = free.get()
        try:
            if not _is_done(worker, job):
                work(job)  # fails again, here where its error is seen
        finally:
            free.put(worker)
        return job

    executor = ThreadPoolExecutor(max_workers=max(num_processes, 1))
    begun: deque[Future[str]] = deque()
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


def _start(work: Callable[[str], object]) -> Worker:
    worker = subprocess.Popen(
        python_command("-m", "data_pipelines.processes"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=python_environment(),
        start_new_session=True,  # Ctrl-C is this process's to answer
    )
    pickled = pickle.dumps(work)
    _send(worker, f"{len(pickled)}\n".encode() + pickled)
    return worker


def _send(worker: Worker, content: bytes) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(content)
        worker.stdin.flush()
    except BrokenPipeError:
        pass  # it was killed, as the missing answer will show


def _is_done(worker: Worker, job: str) -> bool:
    assert worker.stdout is not None
    _send(worker, f"{job}\n".encode())
    answer = worker.stdout.readline()
    if answer not in (DONE, FAILED):
        status = worker.wait()
        raise EnvironmentProblem(
            f"A process that worked on {job} ended with status {status} (out of memory?); "
            "try num_processes=0 (data.folder.* or engine.*)."
        )
    return answer == DONE


def main() -> None:
    """Answer each job on standard input once it is done or has failed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's prints are no answers
    content = sys.stdin.buffer
    work = pickle.loads(content.read(int(content.readline())))  # noqa: S301  written by the process that started this
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    while True:
        job = jobs.get().decode().rstrip("\n")
        try:
            work(job)
            answer = DONE
        except Exception:  # noqa: BLE001  the asking process repeats the job, and reports the error
            answer = FAILED
        answers.write(answer)
        answers.flush()


def _read(jobs: "queue.SimpleQueue[bytes]") -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
