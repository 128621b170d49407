"""DiLoCo: each rank is a worker training by itself, and workers meet every so many steps for an outer step.

arXiv 2311.08105; fragments and deltas of few bits as in arXiv 2501.18512, Muon inside as in arXiv 2505.23725. Built on
Lightning's DDPStrategy without DDP's wrapper and its averaging of gradients.
"""

from datetime import timedelta
from functools import partial

from lmtrain.accounting.options.outer_settings import (
    DeltaFormat,
    delta_bytes,
    outer_bytes,
    require_outer,
    require_turns,
)
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.parallel.strategy import Parallelism, whole
from lmtrain.parallel.workers.outer_step import OuterStep, fragments_of
from lmtrain.parallel.workers.worker_strategy import WorkersStrategy


def diloco(
    *,
    num_ranks: int,
    every_steps: int,
    num_fragments: int = 1,
    outer_lr: float = 1.0,
    outer_momentum: float = 0.0,
    delta: DeltaFormat = "fp32",
    timeout_seconds: float = 600.0,
) -> Parallelism:
    """Train a worker on each rank; each of the model's fragments meets once in `every_steps` steps.

    `delta` is the format of the deltas as they are sent.

    Raises:
        ConfigurationError: A single rank, steps not divided by the fragments, or a diverging outer step.
    """
    spread = diloco_facts(
        every_steps=every_steps,
        num_fragments=num_fragments,
        outer_lr=outer_lr,
        outer_momentum=outer_momentum,
        delta=delta,
    )
    spread.require_ranks(num_ranks)
    outer = OuterStep(
        every_steps=every_steps, num_fragments=num_fragments, lr=outer_lr, momentum=outer_momentum, delta=delta
    )
    return Parallelism(
        name="diloco",
        strategy=WorkersStrategy(outer, timeout=timedelta(seconds=timeout_seconds)),
        parallelize=whole,
        spread=spread,
        require=partial(fragments_of, num_fragments=num_fragments),
        outer=outer,
    )


def diloco_facts(
    *,
    every_steps: int = 1,
    num_fragments: int = 1,
    outer_lr: float = 1.0,
    outer_momentum: float = 0.0,
    delta: DeltaFormat = "fp32",
) -> ModelSpread:
    """Keep the whole model and the global weights on every rank, and send deltas now and then."""
    require_turns(every_steps, num_fragments)
    require_outer(outer_lr, outer_momentum)
    return ModelSpread(
        meets_every_steps=every_steps,
        gradient_bytes=delta_bytes(delta),
        kept_bytes=outer_bytes(outer_momentum),
        least_ranks=2,
    )
