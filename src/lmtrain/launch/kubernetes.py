"""A run as Kubernetes objects: an indexed Job, a pod a node, and the headless service that gives pods their names.

https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
"""

from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.launch.nodes import PORT, NodesJob

FOLDER: Final = "/shared"  # of the claim, and where the run's command is typed
GPU_RESOURCES: Final = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}  # of the vendors' device plugins
RETRIES: Final = 10  # of a pod failed by itself; disruptions are not counted
GRACE_SECONDS: Final = 120  # from a pod's SIGTERM to SIGKILL; torchrun passes SIGTERM on and waits 30


def objects(job: NodesJob, *, image: str, claim: str) -> list[dict[str, Any]]:
    """Return the service and the Job; all pods work in the folder of one volume claim, where runs and data stay.

    Raises:
        ConfigurationError: Pods cannot ask for the device.
    """
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.label},
        # Not ready pods too: ranks look for one another before any is.
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": job.label}},
    }
    work = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.label},
        "spec": {
            "completionMode": "Indexed",
            "completions": job.num_nodes,
            "parallelism": job.num_nodes,
            "backoffLimit": RETRIES * job.num_nodes,  # one that fails ends the ranks of all
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": {"spec": _pod(job, image=image, claim=claim)},
        },
    }
    return [service, work]


def _pod(job: NodesJob, *, image: str, claim: str) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "train",
        "image": image,
        "workingDir": FOLDER,
        "command": _command(job),
        "ports": [{"containerPort": PORT}],
        "volumeMounts": [{"name": "shared", "mountPath": FOLDER}, {"name": "memory", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    if job.device is not None:
        container["resources"] = {"limits": {_gpu_resource(job.device): str(job.ranks_per_node)}}
    return {
        "subdomain": job.label,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},  # of ranks and loader workers: a pod has 64 MiB
        ],
    }


def _gpu_resource(device: str) -> str:
    vendor = device.partition(" ")[0]
    if vendor not in GPU_RESOURCES:
        raise ConfigurationError(
            f"cluster.device={device or 'null'} is of no vendor whose GPUs Kubernetes is known to count here, "
            f"{' or '.join(GPU_RESOURCES)}; nearest valid: cluster=h100_8x, or cluster=cpu for nodes without one."
        )
    return GPU_RESOURCES[vendor]


def _command(job: NodesJob) -> list[str]:
    """Return a pod's command; no shell reads it, and Kubernetes reads $(NAME), and takes $$ for a plain $."""
    index = "\0"
    words = job.torchrun("python", node_rank=index, address=f"{job.label}-0.{job.label}")
    return [word.replace("$", "$$").replace(index, "$(JOB_COMPLETION_INDEX)") for word in words]
