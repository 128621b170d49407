"""Pipeline parallelism: planned, and refused by a run; docs/decisions/0018 has the reasons."""

from lmtrain.accounting.model.memory import Pipeline, Schedule
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError
from lmtrain.parallel.strategy import Parallelism


def pipeline(*, num_ranks: int, num_stages: int, schedule: Schedule = "1f1b", num_chunks: int = 1) -> Parallelism:
    """Refuse to train: no strategy of Lightning runs a schedule of stages."""
    del num_chunks
    raise ConfigurationError(
        f"strategy=pipeline (schedule={schedule}, {format_count(num_stages, 'stage')}, "
        f"{format_count(num_ranks, 'rank')}) is planned and does not train: a schedule owns a whole step, as "
        "Lightning's loop does (docs/decisions/0018). Did you mean strategy=fsdp_tensor?"
    )


def pipeline_facts(*, num_stages: int = 8, schedule: Schedule = "1f1b", num_chunks: int = 1) -> ModelSpread:
    """Cut the layers over neighbours, `num_chunks` parts each; nothing frees gradients, as nothing trains."""
    stages = Pipeline(num_stages=num_stages, num_chunks=num_chunks, schedule=schedule)
    return ModelSpread(pipeline=stages, keeps_gradients=True)
