"""Pipeline parallelism: neighbouring ranks hold some layers each, and hand hidden states on.

arXiv 2104.04473 section 2.2. Copies of a pipeline read other rows, and add up gradients once a step. Checkpoints have
every parameter under its name in the whole model: they go on in any number of stages, and without any.
"""

import torch

from lmtrain.accounting.model.memory import Pipeline, Schedule
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.parallel.mesh import over_mesh
from lmtrain.parallel.strategy import Parallelism


def pipeline(
    *,
    num_ranks: int,
    pipeline_size: int,
    schedule: Schedule = "1f1b",
    num_chunks: int = 1,
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Cut the layers over `pipeline_size` neighbours, in `num_chunks` parts each; each such group has a copy."""
    return over_mesh(
        "pipeline",
        pipeline_facts(pipeline_size=pipeline_size, schedule=schedule, num_chunks=num_chunks),
        num_ranks=num_ranks,
        compute_dtype=torch.float32,  # autocast decides
        timeout_seconds=timeout_seconds,
    )


def pipeline_facts(*, pipeline_size: int = 8, schedule: Schedule = "1f1b", num_chunks: int = 1) -> ModelSpread:
    """Cut the layers over neighbours, `num_chunks` parts each."""
    stages = Pipeline(num_stages=pipeline_size, num_chunks=num_chunks, schedule=schedule)
    return ModelSpread(pipeline=stages, keeps_gradients=True)
