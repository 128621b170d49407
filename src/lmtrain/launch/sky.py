"""A run as a task of SkyPilot: so many nodes of a kind of GPU from any cloud, and each node's command.

https://docs.skypilot.co/en/latest/reference/yaml-spec.html
"""

import re
import shlex
from collections.abc import Collection, Sequence
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.launch.nodes import NodesJob

# Product names as SkyPilot's catalogs have them: `sky show-gpus`.
ACCELERATORS: Final = {
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA B200": "B200",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "AMD Instinct MI300X": "MI300X",
}

# Flags of `sky launch`: https://docs.skypilot.co/en/latest/reference/cli.html
GPUS: Final = ("--gpus", "--accelerators")
NAMED: Final = {"--num-nodes": "cluster.num_nodes", "-n": "run.name", "--name": "run.name"}
SWITCHES: Final = ("--use-spot", "--no-use-spot", "-y", "--yes", "--down", "-d", "--detach-run", "--retry-until-up")
OWN: Final = (
    *("-c", "--cluster", "--cloud", "--infra", "--region", "--zone", "--instance-type", "-t", "--cpus", "--memory"),
    *("--disk-size", "--disk-tier", "--image-id", "--env", "--env-file", "--secret", "-i", "--ports", "--workdir"),
    "--idle-minutes-to-autostop",
)
OF_HYDRA: Final = ("job", "hydra", "all")  # of -c, --cfg


def refuse_flags_of_sky(words: Sequence[str], clusters: Collection[str]) -> None:
    """Refuse the flags of `sky launch`: those of nodes by the words here, of `clusters` too, others as its own.

    Raises:
        ConfigurationError: There are some.
    """
    meant, own = list[str](), list[str]()
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        following = words[index + 1] if index + 1 < len(words) else ""
        has_value = not equals and flag not in SWITCHES and following and not re.search(r"=|^-", following)
        value = following if has_value else value
        if flag == "-c" and value in OF_HYDRA:
            continue
        if flag in NAMED:
            meant.append(f"{NAMED[flag]}={value or 'VALUE'}")
        elif flag in GPUS:
            meant += _nodes_of(value, clusters)
        elif flag in SWITCHES or flag in OWN:
            own.append(f"{word} {value}" if has_value else word)
    told = [f"write {shlex.join(meant)}"] if meant else []
    if own:
        flags = " ".join(own)
        told.append(f"give {flags} to SkyPilot: `lmtrain launch sky ... > task.yaml`, `sky launch {flags} task.yaml`")
    if told:
        raise ConfigurationError(f"flags of `sky launch`: {'; '.join(told)}.")


def _nodes_of(accelerators: str, clusters: Collection[str]) -> list[str]:
    """Return the words for H100:8: a cluster of that name, else its device and number."""
    name, _, number = accelerators.partition(":")
    number = number if number.isdecimal() else "1"
    device = next((device for device, known in ACCELERATORS.items() if known.lower() == name.lower()), None)
    if device is None:
        raise ConfigurationError(
            f"{name or 'nothing'} is no GPU known here; nearest valid: cluster=h100_8x, or cluster.device of "
            f"{', '.join(ACCELERATORS)}."
        )
    option = f"{name.lower().partition('-')[0]}_{number}x"
    if option in clusters and "80GB" not in name:
        return [f"cluster={option}"]
    return [f"cluster.device={device}", f"cluster.devices_per_node={number}"]


def task(job: NodesJob) -> dict[str, Any]:
    """Return the task; the project's folder goes along, and is set up on every node.

    Raises:
        ConfigurationError: The device has no name among SkyPilot's.
    """
    # Known to a node alone, and so for its shell to read; every other word is quoted.
    shell = {"--node-rank=?": '--node-rank="$SKYPILOT_NODE_RANK"', "--master-addr=?": '--master-addr="$first"'}
    words = job.torchrun(".venv/bin/python", node_rank="?", address="?")
    command = " ".join(shell.get(word) or shlex.quote(word) for word in words)
    return {
        "name": job.label,
        "workdir": ".",
        "num_nodes": job.num_nodes,
        **({} if job.device is None else {"resources": _resources(job)}),
        "setup": "make setup",
        "run": f'first=$(head -n 1 <<< "$SKYPILOT_NODE_IPS")\n{command}\n',
    }


def _resources(job: NodesJob) -> dict[str, Any]:
    name = ACCELERATORS.get(job.device or "")
    if name is None:
        raise ConfigurationError(
            f"cluster.device={job.device or 'null'} is none of SkyPilot's that are known here; nearest valid: "
            f"{', '.join(ACCELERATORS)}."
        )
    return {"accelerators": f"{name}:{job.ranks_per_node}"}
