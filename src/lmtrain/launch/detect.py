"""Recognise the processes of an outer launcher, one per rank, so that lmtrain does not spawn its own over them.

The order is Lightning's: torchrun (also used by Kubernetes training operators), then SLURM. In SLURM the
variables of the step count, not the job's: `srun` may start fewer tasks on fewer nodes;
https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES.
"""

import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError

AGENT: Final = "TORCHELASTIC_RUN_ID"  # set in a rank whose parent is torchrun's agent
STORE_VARIABLE: Final = "LMTRAIN_STORE"  # set by our own agent: the file its ranks meet in
PORTS: Final = range(15_000, 30_000)  # below the kernel's own range of ports
LOOPBACK_ADDRESS: Final = "127.0.0.1"
# A launcher's variables in the environment of its ranks; they must not reach the ranks of another job.
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    | {"GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"}
    | {STORE_VARIABLE}
)


@dataclass(frozen=True)
class OuterLauncher:
    """This process's launcher, and its place among the ranks.

    `store_file` is where ranks of one machine meet; None if they meet over the network, at `address` and `port`, which
    are None if the environment has them (MASTER_ADDR, MASTER_PORT).
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    store_file: Path | None = None
    node_rank: int = 0
    address: str | None = None
    port: int | None = None


def outer_launcher(environment: Mapping[str, str]) -> OuterLauncher | None:
    """Return this process's launcher with its rank, None for an ordinary process."""
    if AGENT in environment or {"RANK", "WORLD_SIZE"} <= environment.keys():
        return _torchrun(environment)
    num_tasks = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
    # A batch script that runs python without srun, or a shell on a node, is one process.
    if num_tasks > 1 and "SLURM_PROCID" in environment:
        return _slurm(environment, num_tasks)
    return None


def without_rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment without an outer job's variables."""
    return {
        name: value
        for name, value in environment.items()
        if name not in RANK_VARIABLES and not name.startswith("TORCHELASTIC_")
    }


def first_host(nodes: str) -> str:
    """Return the first host of a list in SLURM's short form, as rack1-n[007-009,12],login."""
    first = re.match(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else nodes)


def _torchrun(environment: Mapping[str, str]) -> OuterLauncher:
    world_size = _number(environment, "WORLD_SIZE", 1)
    return OuterLauncher(
        rank=_number(environment, "RANK", 0),
        local_rank=_number(environment, "LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=_number(environment, "LOCAL_WORLD_SIZE", world_size),
        store_file=Path(environment[STORE_VARIABLE]) if STORE_VARIABLE in environment else None,
        node_rank=_number(environment, "GROUP_RANK", 0),
    )


def _slurm(environment: Mapping[str, str], num_tasks: int) -> OuterLauncher:
    num_nodes = _number(environment, "SLURM_STEP_NUM_NODES", 1) or 1
    per_node = environment.get("SLURM_STEP_TASKS_PER_NODE", "")  # SLURM's form: 2(x3),1
    if not re.fullmatch(r"\d+(\(x\d+\))?", per_node) or num_tasks % num_nodes:
        raise ConfigurationError(
            f"SLURM started {format_count(num_tasks, 'task')} on {format_count(num_nodes, 'node')} as {per_node}: "
            f"every node needs the same number of tasks; set srun --ntasks-per-node={max(1, num_tasks // num_nodes)}."
        )
    # A port particular to this job, step and requeue.
    job, step, restart = (
        _number(environment, name, 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    )
    return OuterLauncher(
        rank=_number(environment, "SLURM_PROCID", 0),
        local_rank=_number(environment, "SLURM_LOCALID", 0),
        world_size=num_tasks,
        local_world_size=num_tasks // num_nodes,
        node_rank=_number(environment, "SLURM_NODEID", 0),
        address=_slurm_address(environment.get("SLURM_STEP_NODELIST", ""), num_nodes),
        port=PORTS[(job * 31 + step * 7 + restart) % len(PORTS)],
    )


def _slurm_address(nodes: str, num_nodes: int) -> str:
    """Return the address of a step's first node: its name, or SLURM's NodeAddr if the name does not resolve."""
    if num_nodes == 1:
        return LOOPBACK_ADDRESS
    host = first_host(nodes)
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        try:
            words = ["scontrol", "show", "node", host]
            answer = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return host
        found = re.search(r"\bNodeAddr=(\S+)", answer)
        return found[1] if found else host
    return host


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    return int(environment.get(name, default))
