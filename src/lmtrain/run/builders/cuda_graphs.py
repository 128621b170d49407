"""The recorder of a run's micro-steps as a CUDA graph, where chosen and possible."""

from lmtrain.run.builders.kernels import device_type
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.recordable import require_recordable
from lmtrain.training.micro_step_graph import CudaGraph, MakeGraph


def graphs_of(config: RunConfig) -> MakeGraph | None:
    """Return the recorder of micro-steps, or None where not chosen.

    Raises:
        ConfigurationError: The run has a part impossible or untried in a recorded step.
    """
    require_recordable(config, num_ranks=config.num_ranks, device=device_type(config.trainer.accelerator))
    return CudaGraph if config.compile.get("cuda_graphs", False) else None
