"""Watch over the ranks of one job: `python -m lmtrain.launch.agent`, started only by local.launch."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from lmtrain.launch.job import LaunchJob, StopRequest, plain_exit_code
from lmtrain.launch.local import FORWARDED_SIGNALS
from lmtrain.training.lifetime import die_with_parent


def main() -> int:
    """Run the command line's job and return its exit code."""
    arguments = _parser().parse_args()
    die_with_parent(arguments.parent)
    stop = StopRequest()

    def request_stop(number: int, _frame: FrameType | None) -> None:
        if not stop.pass_on(number):
            os._exit(plain_exit_code(-number))  # there are no ranks yet, so there is nothing to save

    for number in FORWARDED_SIGNALS:
        signal.signal(number, request_stop)
    job = LaunchJob(
        num_ranks=arguments.num_processes,
        entry_point=arguments.entry_point,
        config_path=arguments.config,
        log_folder=arguments.log_folder,
        run_folder=arguments.run_folder,
        grace_seconds=arguments.grace_seconds,
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_per_rank(job.num_ranks)))
    from lmtrain.launch.elastic import run_job  # imports torch; the handlers come first so that no signal is lost

    return run_job(job, stop)


def threads_per_rank(num_ranks: int) -> int:
    """Divide this machine's cores among its ranks, at least one each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // num_ranks)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lmtrain.launch.agent")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--num-processes", type=int, required=True)
    parser.add_argument("--grace-seconds", type=float, required=True)
    parser.add_argument("--entry-point", required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log-folder", type=Path, required=True)
    parser.add_argument("--run-folder", type=Path, required=True)
    return parser


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Python's own shutdown of torch's modules takes seconds on a busy machine
