"""SLURM's batch script: a task per rank, warned before its time limit, queued again, and continuing.

https://slurm.schedmd.com/sbatch.html
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.launch.nodes import NodesJob, template

SIGNAL_SECONDS: Final = 300
CLOCK: Final = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+)(?::(?P<minutes>\d+))?(?::(?P<seconds>\d+))?")


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Requests to a queue besides nodes; None takes the queue's default.

    SIGUSR1 comes `signal_seconds` before the limit. `directives` are sbatch's other long options, by name.
    """

    time_seconds: float | None = None
    signal_seconds: float = SIGNAL_SECONDS
    cpus_per_task: int | None = None
    directives: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        shortest = 60 + self.signal_seconds
        if self.time_seconds is not None and self.time_seconds < shortest:
            raise ConfigurationError(
                f"--time: must be at least {shortest:g}s, a minute more than --signal-before, got "
                f"{self.time_seconds:g}s."
            )


def batch_script(job: NodesJob, limits: BatchLimits, *, python: str, log: Path) -> str:
    """Return the script; every rank is a task, and `log` gets the output of all, with %j for the job's number."""
    per_task = [f"--cpus-per-task={limits.cpus_per_task}"] if limits.cpus_per_task else []
    directives = [
        f"--job-name={job.name}",
        f"--nodes={job.num_nodes}",
        f"--ntasks-per-node={job.ranks_per_node}",
        *([] if job.device is None else [f"--gpus-per-node={job.ranks_per_node}"]),
        *per_task,
        *([] if limits.time_seconds is None else [f"--time={_clock(limits.time_seconds)}"]),
        f"--signal=USR1@{limits.signal_seconds:.0f}",
        "--requeue",
        "--open-mode=append",
        f"--output={shlex.quote(str(log))}",
        *(f"--{name}={shlex.quote(value)}" if value else f"--{name}" for name, value in limits.directives.items()),
    ]
    return template("sbatch.sh").substitute(
        directives="\n".join(f"#SBATCH {directive}" for directive in directives),
        step_options="".join(f" {option}" for option in per_task),  # a step does not inherit it
        command=shlex.join(job.train(python)),
    )


def submit(script: Path) -> str:
    """Submit a script to the queue and return the job's number."""
    ended = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        reason = " ".join((ended.stderr or ended.stdout).split())
        raise EnvironmentProblem(f"sbatch refused {script} with status {ended.returncode}: {reason}")
    return ended.stdout.strip().partition(";")[0]  # NUMBER;CLUSTER where there are several


def require_sbatch() -> None:
    """Refuse a machine without sbatch."""
    if shutil.which("sbatch") is None:
        raise EnvironmentProblem(
            "lmtrain launch slurm: sbatch is not on this machine; --dry-run prints the script to copy to a cluster."
        )


def seconds_of_clock(text: str) -> int | None:
    """Return the seconds of HH:MM:SS, D-HH or D-HH:MM:SS, as sbatch writes a limit; None for another text."""
    found = CLOCK.fullmatch(text)
    if found is None or not (found["days"] or found["seconds"]):  # MM:SS may be read as HH:MM
        return None
    days, hours, minutes, seconds = (int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _clock(seconds: float) -> str:
    """Format a limit as SLURM reads it, D-HH:MM:SS."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
