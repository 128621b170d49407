"""What records a run's micro-steps as a CUDA graph, where that was asked for and can be."""

from lmtrain.composition.parts.kernels import device_type
from lmtrain.composition.rules.recordable import require_recordable
from lmtrain.composition.run_config import RunConfig
from lmtrain.training.micro_step_graph import CudaGraph, MakeGraph


def graphs_of(config: RunConfig) -> MakeGraph | None:
    """Return what records micro-steps, or None where that was not asked for.

    Raises:
        ConfigurationError: The run does what a recorded step cannot do, or what nobody has tried in one.
    """
    require_recordable(config, num_ranks=config.num_ranks, device=device_type(config.trainer.accelerator))
    return CudaGraph if config.compile.get("cuda_graphs", False) else None
