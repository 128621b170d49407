"""A step of a SLURM job, from `srun`'s variables of each task: its ranks, and where they meet.

The variables of the step count and not the job's: its `srun` may start fewer tasks on fewer nodes;
https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES.
"""

import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError

PORTS: Final = range(15_000, 30_000)  # below the kernel's own range of ports
MAX_DIGITS: Final = 20
LOOPBACK_ADDRESS: Final = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class SlurmStep:
    """One task of a step; ranks meet at `address`, the step's first node, and at a port of the job's own."""

    rank: int
    local_rank: int
    node_rank: int
    num_tasks: int
    tasks_per_node: int
    address: str
    port: int


def slurm_step(environment: Mapping[str, str]) -> SlurmStep | None:
    """Return this process's task, None outside a step and in a step of one task.

    A batch script that runs python without `srun`, or a shell on a node, is one process, for any number of the job's
    tasks.

    Raises:
        ConfigurationError: A variable is no number, or the nodes have different numbers of tasks.
    """
    num_tasks = _number(environment, "SLURM_STEP_NUM_TASKS")
    if num_tasks is None or num_tasks == 1 or "SLURM_PROCID" not in environment:
        return None
    num_nodes = _number(environment, "SLURM_STEP_NUM_NODES") or 1
    return SlurmStep(
        rank=_number(environment, "SLURM_PROCID") or 0,
        local_rank=_number(environment, "SLURM_LOCALID") or 0,
        node_rank=_number(environment, "SLURM_NODEID") or 0,
        num_tasks=num_tasks,
        tasks_per_node=_tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""), num_tasks, num_nodes),
        address=_address(environment.get("SLURM_STEP_NODELIST", ""), num_nodes),
        port=_port(environment),
    )


def first_host(nodes: str) -> str:
    """Return the first host of a list in SLURM's short form, as rack1-n[007-009,12],login."""
    first = re.match(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else nodes)


def _tasks_per_node(text: str, num_tasks: int, num_nodes: int) -> int:
    """Return the tasks of each node, in SLURM's form 2(x3),1."""
    if re.fullmatch(r"\d+(\(x\d+\))?", text) and num_tasks % num_nodes == 0:
        return num_tasks // num_nodes
    raise ConfigurationError(
        f"SLURM started {format_count(num_tasks, 'task')} on {format_count(num_nodes, 'node')} as {text}: every node "
        f"needs as many as the others; give srun --ntasks-per-node={max(1, num_tasks // num_nodes)}."
    )


def _address(nodes: str, num_nodes: int) -> str:
    """Return the address of a step's first node: its name, or SLURM's own word for it where the name is not known."""
    if num_nodes == 1:
        return LOOPBACK_ADDRESS
    host = first_host(nodes)
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):  # a name that no domain name can be
        return _configured_address(host) or host
    return host


def _configured_address(host: str) -> str | None:
    try:
        asked = subprocess.run(
            ["scontrol", "show", "node", host], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", asked.stdout)
    return found[1] if found else None


def _port(environment: Mapping[str, str]) -> int:
    """Return a port particular to this job, step and requeue."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    job, step, restart = (_number(environment, name) or 0 for name in names)
    return PORTS[(job * 31 + step * 7 + restart) % len(PORTS)]


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise ConfigurationError(f"environment variable {name}={text[:40]!r} must be a whole number; unset it.")
    return int(text)
