"""Run a job's tasks in processes of this machine, with datatrove's local executor: finished tasks stay finished.

The executor runs in another process, whose input ends with this process, so that no worker outlives it;
its output goes to a file.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from data_pipelines.engines.cluster import pipeline_of, require_finished
from data_pipelines.extras import silence_datatrove
from data_pipelines.stages.stage import PipelineJob
from lmtrain.child_process import python_command, python_environment

LOG = "executor.log"
LOOK_SECONDS = 0.5


def run_job(
    job: PipelineJob, folder: Path, *, num_processes: int, advance: Callable[[float], object] = lambda _: None
) -> None:
    """Run a job's remaining tasks; `advance` is called, as they end, with the share done.

    Raises:
        EnvironmentProblem: A task failed; `folder` holds the cause.
    """
    import dill
    from datatrove.executor import LocalPipelineExecutor  # pyright: ignore[reportMissingImports]  # an extra

    silence_datatrove()
    executor = LocalPipelineExecutor(
        pipeline=pipeline_of(job),
        tasks=job.num_tasks,
        workers=max(1, min(num_processes, job.num_tasks)),
        logging_dir=str(folder),
    )
    if job.num_tasks == 0 or not executor.get_incomplete_ranks():
        return
    folder.mkdir(parents=True, exist_ok=True)
    pickled = folder / "executor.pik"
    pickled.write_bytes(dill.dumps(executor))
    with (folder / LOG).open("w") as log:
        process = subprocess.Popen(
            python_command("-m", __name__, str(pickled)),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=python_environment(),
            start_new_session=True,  # Ctrl-C is this process's to answer
        )
        try:
            while not _ends_within(process, LOOK_SECONDS):
                advance(1 - len(executor.get_incomplete_ranks()) / job.num_tasks)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
    require_finished(job, executor, folder / LOG)


def _ends_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def main(pickled: str) -> None:
    """Run the executor in a file; end with all its workers when the input ends before."""
    import dill

    threading.Thread(target=_end_with_input, daemon=True).start()
    executor = dill.loads(Path(pickled).read_bytes())  # noqa: S301  written by the process that started this
    executor.run()


def _end_with_input() -> None:
    while os.read(0, 1):  # not sys.stdin: a fork, which closes that, would wait for this thread's lock on it for ever
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
