"""Every rank holds the whole model: one device, or DistributedDataParallel."""

from dataclasses import replace
from datetime import timedelta

from lightning.pytorch.strategies import DDPStrategy

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.parallel.strategy import Parallelism, whole


def single(*, num_ranks: int) -> Parallelism:
    """Train on one device.

    Raises:
        ConfigurationError: More than one rank was asked for.
    """
    if num_ranks != 1:
        msg = f"strategy=single trains on 1 rank, not {num_ranks}; use strategy=ddp, or shard over them."
        raise ConfigurationError(msg)
    return Parallelism(name="single", strategy="auto", parallelize=whole, spread=single_facts())


def ddp(*, num_ranks: int, timeout_seconds: float = 600.0) -> Parallelism:
    """Replicate the model and average gradients over ranks; a rank's silence of the timeout ends the run."""
    del num_ranks
    strategy = DDPStrategy(
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
        timeout=timedelta(seconds=timeout_seconds),
    )
    return Parallelism(name="ddp", strategy=strategy, parallelize=whole, spread=ddp_facts())


def auto(*, num_ranks: int, timeout_seconds: float = 600.0) -> Parallelism:
    """Choose `single` for one rank and `ddp` for several; for a known device a plan has chosen before."""
    chosen = single(num_ranks=1) if num_ranks == 1 else ddp(num_ranks=num_ranks, timeout_seconds=timeout_seconds)
    return replace(chosen, spread=auto_facts())


def single_facts() -> ModelSpread:
    """Keep the whole model on one rank."""
    return ModelSpread(reduces_alone=False, most_ranks=1)


def ddp_facts() -> ModelSpread:
    """Keep the whole model on every rank, and send gradients."""
    return ModelSpread()


def auto_facts() -> ModelSpread:
    """Keep the whole model on every rank, be it one or several, where a plan chooses no other strategy."""
    return ModelSpread(reduces_alone=False, chooses=True)
