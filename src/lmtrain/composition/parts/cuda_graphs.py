"""What records a run's micro-steps as a CUDA graph, where that was asked for and can be."""

from typing import Any

from lmtrain.composition.nodes.facts import CHECKED
from lmtrain.composition.parts.kernels import device_type
from lmtrain.composition.rules.recordable import require_recordable
from lmtrain.training.micro_step_graph import CudaGraph, MakeGraph


def graphs_of(config: dict[str, Any]) -> MakeGraph | None:
    """Return what records micro-steps, or None where that was not asked for.

    Raises:
        ConfigurationError: The run does what a recorded step cannot do, or what nobody has tried in one.
    """
    trainer = config["trainer"]
    num_ranks, device = trainer["devices"] * trainer["num_nodes"], device_type(trainer["accelerator"])
    require_recordable(config, num_ranks=num_ranks, device=device, allowed=CHECKED)
    return CudaGraph if config["compile"].get("cuda_graphs", False) else None
