"""A run as a task of SkyPilot: so many nodes of a kind of GPU from any cloud, and each node's command.

https://docs.skypilot.co/en/latest/reference/yaml-spec.html
"""

import shlex
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
