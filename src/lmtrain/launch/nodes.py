"""A run on several nodes: its overrides, the Trainer's numbers, and the files of Kubernetes and SkyPilot for it.

The files are the templates in `templates/`, filled with JSON, which is also YAML.
"""

import json
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from lmtrain.errors import ConfigurationError

PORT: Final = 29_500  # torchrun's own default
MAX_LABEL_LENGTH: Final = 50  # of 63 characters: an index follows
TEMPLATES: Final = Path(__file__).parent / "templates"
RETRIES: Final = 10  # of a pod that fails by itself; disruptions are not counted
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
GPU_RESOURCES: Final = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}  # of the vendors' device plugins
# Our device names as SkyPilot's catalogs have them: `sky show-gpus`.
SKY_ACCELERATORS: Final = {
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA B200": "B200",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "AMD Instinct MI300X": "MI300X",
}


@dataclass(frozen=True, kw_only=True)
class NodesJob:
    """One start of a run: the overrides for `lmtrain train`, the Trainer's nodes and ranks per node, and the device.

    `device` is None on nodes without a GPU, and "" if the GPU is not named. `root` is the folder of all runs.
    """

    name: str
    words: Sequence[str]
    num_nodes: int
    ranks_per_node: int
    device: str | None
    root: Path = Path("runs")

    @property
    def label(self) -> str:
        """Return the run's name as a host name: lower-case letters, digits and hyphens, a letter first."""
        label = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        label = label if label[:1].isalpha() else f"run-{label}"
        return label[:MAX_LABEL_LENGTH].rstrip("-")

    def train(self, python: str) -> list[str]:
        """Return the command of one rank."""
        return [python, "-P", "-m", "lmtrain.cli", "train", *self.words]

    def torchrun(self, python: str, *, node_rank: str, address: str, port: int = PORT) -> list[str]:
        """Return the command of one node: torchrun's agent with its ranks; nodes meet at the first one's address.

        A static rendezvous without restarts: if one node ends, all end, and the scheduler starts them again.
        """
        where = [f"--nnodes={self.num_nodes}", f"--nproc-per-node={self.ranks_per_node}", f"--node-rank={node_rank}"]
        where += [f"--master-addr={address}", f"--master-port={port}"]
        return [python, "-P", "-m", "torch.distributed.run", *where, "--no-python", *self.train(python)]


def template(name: str) -> Template:
    """Return a file of the templates."""
    return Template((TEMPLATES / name).read_text(encoding="utf-8"))


def kubernetes_manifest(
    job: NodesJob, *, image: str, claim: str, queue: str | None = None, resources: Mapping[str, str] | None = None
) -> str:
    """Return the YAML of a service and an indexed Job with a pod per node; all pods share one volume claim.

    `queue` is Kueue's, which starts all pods together; `resources` are a pod's besides GPUs.
    """
    index = "\0"
    words = job.torchrun("python", node_rank=index, address=f"{job.label}-0.{job.label}")
    # No shell reads the command, but Kubernetes does: $(NAME) is a variable, and $$ a plain $.
    command = [word.replace("$", "$$").replace(index, "$(JOB_COMPLETION_INDEX)") for word in words]
    gpus = {} if job.device is None else {_gpu_resource(job.device): str(job.ranks_per_node)}
    limits = gpus | dict(resources or {})
    has_cards = any("/" in name for name in resources or {})  # of a device plugin; RDMA pins memory
    return template("kubernetes.yaml").substitute(
        label=_json(job.label),
        num_nodes=job.num_nodes,
        num_retries=RETRIES * job.num_nodes,
        image=_json(image),
        claim=_json(claim),
        command=_json(command),
        port=PORT,
        labels=_json({QUEUE_LABEL: queue} if queue else {}),
        resources=_json({"limits": limits} if limits else {}),
        security=_json({"capabilities": {"add": ["IPC_LOCK"]}} if has_cards else {}),
    )


def sky_task(job: NodesJob) -> str:
    """Return the YAML of a SkyPilot task; the project's folder is copied to every node and set up there."""
    # These two are known on a node only, so its shell reads them; every other word is quoted.
    shell = {"--node-rank=?": '--node-rank="$SKYPILOT_NODE_RANK"', "--master-addr=?": '--master-addr="$first"'}
    words = job.torchrun(".venv/bin/python", node_rank="?", address="?")
    command = " ".join(shell.get(word) or shlex.quote(word) for word in words)
    resources = "" if job.device is None else f"resources: {_json({'accelerators': _accelerators(job)})}\n"
    return template("sky.yaml").substitute(
        label=_json(job.label),
        num_nodes=job.num_nodes,
        resources=resources,
        command=textwrap.indent(command, "  ", lambda _: True),
    )


def _gpu_resource(device: str) -> str:
    vendor = device.partition(" ")[0]
    if vendor not in GPU_RESOURCES:
        raise ConfigurationError(
            f"cluster.device: must be of {' or '.join(GPU_RESOURCES)} for Kubernetes, got {device or 'null'}; set "
            "cluster=h100_8x or another cluster, or cluster=cpu for nodes without a GPU."
        )
    return GPU_RESOURCES[vendor]


def _accelerators(job: NodesJob) -> str:
    name = SKY_ACCELERATORS.get(job.device or "")
    if name is None:
        raise ConfigurationError(
            f"cluster.device: must be one of SkyPilot's GPUs ({', '.join(SKY_ACCELERATORS)}), got "
            f"{job.device or 'null'}."
        )
    return f"{name}:{job.ranks_per_node}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
