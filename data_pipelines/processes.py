"""Run jobs in several processes of this machine.

A worker is `python -m MODULE ARGUMENTS`: it reads a job a line and answers the same line when the job is done. Its
input ends with this process, after any end, so no worker outlives it.
"""

import queue
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import EnvironmentProblem

AHEAD = 2  # jobs begun or waiting, for each process


def run_jobs(jobs: Iterable[str], *, module: str, arguments: Sequence[str], num_processes: int) -> Iterator[str]:
    """Yield the jobs in their order, each once it is done; only a few are taken from `jobs` ahead.

    Raises:
        EnvironmentProblem: A worker failed, or was killed.
    """
    workers: list[subprocess.Popen[str]] = []
    free: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()

    def run(job: str) -> str:
        worker = free.get()
        try:
            return _ask(worker, job)
        finally:
            free.put(worker)

    executor = ThreadPoolExecutor(max_workers=num_processes)
    begun: deque[Future[str]] = deque()
    try:
        for job in jobs:
            if len(workers) < num_processes:
                workers.append(_start(module, arguments))
                free.put(workers[-1])
            begun.append(executor.submit(run, job))
            while begun and (len(begun) >= AHEAD * num_processes or begun[0].done()):
                yield begun.popleft().result()
        for future in begun:
            yield future.result()
    finally:
        for worker in workers:
            worker.kill()
        executor.shutdown(cancel_futures=True)
        for worker in workers:
            worker.communicate()


def _start(module: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        python_command("-m", module, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=python_environment(),
        start_new_session=True,  # Ctrl-C is this process's to answer
    )


def _ask(worker: subprocess.Popen[str], job: str) -> str:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(f"{job}\n")
        worker.stdin.flush()
    except BrokenPipeError:
        pass  # it is gone, as the missing answer will show
    if worker.stdout.readline() != f"{job}\n":
        status = worker.wait()
        how = f"was killed by signal {-status} (out of memory?)" if status < 0 else f"failed with status {status}"
        raise EnvironmentProblem(
            f"A process that worked on {job} {how}; try num_processes=0 (data.folder.* or engine.*)."
        )
    return job
