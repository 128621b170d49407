"""Recognise an outer launcher's processes, one a rank, lest lmtrain spawn over them.

Order as Lightning's own detection: torchrun (Kubernetes training operators use it too), then SLURM, then MPI.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lmtrain.errors import ConfigurationError
from lmtrain.launch.slurm import SlurmStep, slurm_step

Kind = Literal["torchrun", "slurm", "mpi"]

AGENT: Final = "TORCHELASTIC_RUN_ID"  # of a rank whose parent is torchrun's agent
STORE_VARIABLE: Final = "LMTRAIN_STORE"  # our own agent's: its ranks' meeting file
# A launcher's variables in the environment of its ranks; they must not reach the ranks of another job.
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    | {"GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"}
    | {STORE_VARIABLE}
)


@dataclass(frozen=True)
class OuterLauncher:
    """This process's launcher, and its place among the ranks.

    `store_file` is where ranks of one machine meet, None where they meet over the network: at `address` and `port`,
    which are None where the environment has them (MASTER_ADDR, MASTER_PORT).
    """

    kind: Kind
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    store_file: Path | None = None
    node_rank: int = 0
    address: str | None = None
    port: int | None = None


def outer_launcher(environment: Mapping[str, str]) -> OuterLauncher | None:
    """Return this process's launcher with its rank, None for an ordinary process.

    Raises:
        ConfigurationError: A rank variable is not a number, or nodes have different numbers of ranks.
    """
    if AGENT in environment or {"RANK", "WORLD_SIZE"} <= environment.keys():
        return _torchrun(environment)
    if slurm := slurm_step(environment):
        return _slurm(slurm)
    if {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"} <= environment.keys():
        return _mpi(environment)
    return None


def as_started(program: str, outer: OuterLauncher | None, environment: Mapping[str, str]) -> str:
    """Return a program's words with torchrun before them, where a person typed it."""
    if outer is None or outer.kind != "torchrun" or outer.store_file is not None or AGENT not in environment:
        return program
    ranks, nodes = outer.local_world_size, outer.world_size // outer.local_world_size
    address = f"{environment.get('MASTER_ADDR')}:{environment.get('MASTER_PORT')}"
    several = f" --nnodes={nodes} --rdzv-backend=c10d --rdzv-endpoint={address}" if nodes > 1 else ""
    script = program.removeprefix("python ")
    return f"torchrun{several} --nproc-per-node={ranks} {'' if script != program else '--no-python '}{script}"


def without_rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment without an outer job's variables."""
    return {
        name: value
        for name, value in environment.items()
        if name not in RANK_VARIABLES and not name.startswith("TORCHELASTIC_")
    }


def _torchrun(environment: Mapping[str, str]) -> OuterLauncher:
    world_size = _number(environment, "WORLD_SIZE", 1)
    return OuterLauncher(
        kind="torchrun",
        rank=_number(environment, "RANK", 0),
        local_rank=_number(environment, "LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=_number(environment, "LOCAL_WORLD_SIZE", world_size),
        store_file=Path(environment[STORE_VARIABLE]) if STORE_VARIABLE in environment else None,
        node_rank=_number(environment, "GROUP_RANK", 0),
    )


def _slurm(step: SlurmStep) -> OuterLauncher:
    return OuterLauncher(
        kind="slurm",
        rank=step.rank,
        local_rank=step.local_rank,
        world_size=step.num_tasks,
        local_world_size=step.tasks_per_node,
        node_rank=step.node_rank,
        address=step.address,
        port=step.port,
    )


def _mpi(environment: Mapping[str, str]) -> OuterLauncher:
    world_size = _number(environment, "OMPI_COMM_WORLD_SIZE", 1)
    if world_size > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        raise ConfigurationError(
            "mpirun gives its ranks no address to meet at; add -x MASTER_ADDR=HOST_OF_RANK_0 -x MASTER_PORT=29500, "
            "or start them with torchrun or srun."
        )
    return OuterLauncher(
        kind="mpi",
        rank=_number(environment, "OMPI_COMM_WORLD_RANK", 0),
        local_rank=_number(environment, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", world_size),
    )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(
            f"environment variable {name}={text[:40]!r} must be a whole number; unset it."
        ) from None
