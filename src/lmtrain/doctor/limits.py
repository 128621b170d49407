"""The system's limits for a long run: shared memory, open files, and who is going to start and stop it."""

import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.doctor.finding import Finding, graded

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # the system's own folder, only looked at
NEEDED_SHARED_BYTES: Final = 64 * 2**20  # of each data worker and rank: batches and NCCL's buffers
NEEDED_FILES: Final = 4096
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io")


def shared_memory(*, num_processes: int, folder: Path = SHARED_MEMORY, free: int | None = None) -> Finding:
    """Hold the free shared memory against the traffic of ranks and data workers through it."""
    if free is None:
        if not folder.is_dir():
            return Finding(name="shared memory", state="ok", found=f"this system has no {folder}")
        free = shutil.disk_usage(folder).free
    needed = NEEDED_SHARED_BYTES * num_processes
    size = format_quantity(needed, "bytes")
    return graded(
        "shared memory",
        f"{format_quantity(free, 'bytes')} free in {folder}, {size} wanted for "
        f"{format_count(num_processes, 'process', 'processes')}",
        is_worse=free < needed,
        is_bad=free < needed / 16,
        fix=f"start the container with --shm-size={size}, or mount a larger tmpfs there",
    )


def open_files(soft: int | None = None) -> Finding:
    """Hold the limit of open files against shards, workers and sockets."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    is_unlimited = soft == resource.RLIM_INFINITY
    return graded(
        "open files",
        "no limit" if is_unlimited else f"at most {soft:,}, {NEEDED_FILES:,} wanted",
        is_worse=not is_unlimited and soft < NEEDED_FILES,
        is_bad=not is_unlimited and soft < NEEDED_FILES // 16,
        fix="raise it before the run: `ulimit -n 65536`",
    )


def scheduler(environment: Mapping[str, str], *, account: Path = SERVICE_ACCOUNT) -> Finding:
    """Return whether SLURM or Kubernetes runs this, and whether it will leave time for a checkpoint."""
    if "SLURM_JOB_ID" in environment:
        return Finding(name="scheduler", state="ok", found=f"SLURM job {environment['SLURM_JOB_ID']}")
    if "KUBERNETES_SERVICE_HOST" in environment or account.is_dir():
        return Finding(
            name="scheduler",
            state="warn",
            found="Kubernetes, which grants 30 seconds from SIGTERM to SIGKILL unless told otherwise",
            fix="set terminationGracePeriodSeconds to more than a checkpoint takes, and run.root to a lasting volume",
        )
    return Finding(name="scheduler", state="ok", found="none: an ordinary shell")


def cores(num_ranks: int) -> Finding:
    """Hold this process's processor cores against its ranks."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return graded(
        "cores",
        f"{usable} usable, {format_count(num_ranks, 'rank')}",
        is_worse=usable < num_ranks,
        fix="give the job at least one core a rank, or lower trainer.devices",
    )
