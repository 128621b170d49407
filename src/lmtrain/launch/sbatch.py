"""A batch script of SLURM: a task a rank, told before its time limit, queued again, and going on.

https://slurm.schedmd.com/sbatch.html
"""

import difflib
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lmtrain.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    EXIT_TERMINATED,
    ConfigurationError,
    EnvironmentProblem,
)
from lmtrain.launch.nodes import NodesJob

SIGNAL_SECONDS: Final = 300
# The shell around a task's rank: a rank's bad end ends all within seconds, for SLURM would let them wait for it.
# The others have a moment to tell of their own end first. bash passes over signals: SLURM sends them to the rank too.
RANK: Final = (
    'trap : USR1 TERM; "$@"; code=$?; '
    f"case $code in {EXIT_DONE}|{EXIT_REQUEUE}|{EXIT_INTERRUPTED}|{EXIT_TERMINATED}) ;; "
    '*) sleep 5; scancel --signal=KILL "$SLURM_JOB_ID.$SLURM_STEP_ID";; esac; exit $code'
)
# Directives with a home elsewhere: the words or the flag to set instead, "" for none.
NODES: Final = "cluster.num_nodes and cluster.devices_per_node"
OWN: Final = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres"), NODES),
    "time": "--time",
    "signal": "--signal-before",
    "cpus-per-task": "--cpus-per-task",
    **dict.fromkeys(("job-name", "output", "error", "requeue", "no-requeue", "open-mode", "array"), ""),
}

SWITCHES: Final = ("exclusive", "contiguous", "hold", "overcommit", "oversubscribe", "spread-job")  # without a value
# The others, passed on by --sbatch=NAME=VALUE.
PASSED: Final = frozenset(
    {"account", "acctg-freq", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters", "comment"}
    | {"constraint", "container", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "deadline"}
    | {"delay-boot", "dependency", "distribution", "exclude", "export", "export-file", "extra-node-info"}
    | {"get-user-env", "gid", "gpu-bind", "gpu-freq", "gres-flags", "hint", "input", "kill-on-invalid-dep"}
    | {"licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus"}
    | {"network", "nice", "nodefile", "nodelist", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket"}
    | {"partition", "power", "prefer", "priority", "profile", "propagate", "qos", "reboot", "reservation", "segment"}
    | {"sockets-per-node", "switches", "test-only", "thread-spec", "threads-per-core", "time-min", "tmp"}
    | {"tres-per-task", "uid", "use-min-nodes", "wait", "wait-all-nodes", "wckey", "wrap"}
    | {*SWITCHES}
)
A_LETTER: Final = 0.8  # likeness of words a letter or two apart


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Requests to a queue beside nodes; None for the queue's own default.

    SIGUSR1 comes `signal_seconds` before the limit. `directives` are sbatch's other long options, by name.
    """

    time_seconds: float | None = None
    signal_seconds: float = SIGNAL_SECONDS
    cpus_per_task: int | None = None
    directives: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if self.time_seconds is not None and self.time_seconds < 60 + self.signal_seconds:
            raise ConfigurationError(
                f"--time={self.time_seconds:g}s leaves the run less than a minute before its signal, "
                f"{self.signal_seconds:g} s earlier; nearest valid: --time={60 + self.signal_seconds:g}s."
            )
        if self.signal_seconds < 1 or self.signal_seconds > 65535:  # sbatch's own bounds
            raise ConfigurationError(
                f"--signal-before={self.signal_seconds:g}s is not from 1 s to 65535 s; nearest valid: "
                f"{min(65535, max(1, self.signal_seconds)):g}s."
            )
        if self.cpus_per_task is not None and self.cpus_per_task < 1:
            raise ConfigurationError(f"--cpus-per-task={self.cpus_per_task} is below 1; nearest valid: 1.")
        for name, value in self.directives.items():
            _require_directive(name, value)


def batch_script(job: NodesJob, limits: BatchLimits, *, python: str, log: Path) -> str:
    """Return the script; every rank is a task, and `log` gets the output of all, %j for the job's number."""
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
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {directive}" for directive in directives),
            f"# At SIGUSR1 the ranks save and end with {EXIT_REQUEUE}; the job is queued again, and its run goes on.",
            shlex.join(["srun", *per_task, "bash", "-c", RANK, "rank", *job.train(python)]),
            "code=$?",
            f'[ $code = {EXIT_REQUEUE} ] && scontrol requeue "$SLURM_JOB_ID"',
            "exit $code",
            "",
        ]
    )


def submit(script: Path) -> str:
    """Hand a script to the queue and return the job's number.

    Raises:
        EnvironmentProblem: There is no sbatch here, or it refused.
    """
    asked = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        told = " ".join((asked.stderr or asked.stdout).split())
        raise EnvironmentProblem(f"sbatch refused {script} with status {asked.returncode}: {told}")
    return asked.stdout.strip().partition(";")[0]  # NUMBER;CLUSTER where there are several


def require_sbatch() -> None:
    """Refuse a machine without sbatch or its controller.

    Raises:
        EnvironmentProblem: There is no sbatch here.
    """
    if shutil.which("sbatch") is None:
        raise EnvironmentProblem(
            "lmtrain launch slurm finds no sbatch here; --dry-run prints the script to take along."
        )


def long_option_near(name: str, others: Sequence[str] = ()) -> str:
    """Return sbatch's long option of almost that name; "" for none, for one itself, and where another is as near."""
    options = {*OWN, *PASSED, *others}
    near = difflib.get_close_matches(name, options, n=1, cutoff=A_LETTER) if name not in options else []
    swapped = [
        option for option in options if sorted(option) == sorted(name) and option != name
    ]  # two letters changed places
    near = near or (swapped if name not in options else [])
    return near[0] if near and near[0] not in others else ""


def _require_directive(name: str, value: str) -> None:
    if not re.fullmatch(r"[a-z][a-z-]+", name) or not (
        re.fullmatch(r"[^\n\r]+", value) or (name in SWITCHES and not value)
    ):
        raise ConfigurationError(f"--sbatch={name}={value} is no long option of sbatch; as in --sbatch=partition=gpu.")
    near = long_option_near(name)
    if near and near not in OWN:
        raise ConfigurationError(
            f"--sbatch={name}={value}: sbatch has no such option; nearest valid: --sbatch={near}={value}."
        )
    if own := (near or name) if (near or name) in OWN else "":
        instead = f"set {OWN[own]} instead" if OWN[own] else "leave it out"
        raise ConfigurationError(f"--sbatch={name}={value} would contradict the script: {instead}.")


def _clock(seconds: float) -> str:
    """Write a limit as SLURM reads it, D-HH:MM:SS."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}"


def read_directives(words: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE words.

    Raises:
        ConfigurationError: One has no value.
    """
    pairs = {name: value for name, _, value in (word.partition("=") for word in words)}
    for word in words:
        if "=" not in word and word not in SWITCHES:
            raise ConfigurationError(f"--sbatch={word} has no value; as in --sbatch=partition=gpu.")
    return pairs
