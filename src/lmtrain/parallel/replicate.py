"""Every rank holds the whole model: one device, or DistributedDataParallel."""

from dataclasses import replace
from datetime import timedelta
from typing import Final, Literal

from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.parallel.experts import balance_over_ranks
from lmtrain.parallel.strategy import Parallelism, whole

SUMS_OF_ANY_ORDER: Final = 2  # ranks: a + b is b + a


def single(*, num_ranks: int) -> Parallelism:
    """Train on one device."""
    if num_ranks != 1:
        msg = f"strategy=single trains on 1 rank, not {num_ranks}; use strategy=ddp, or shard over them."
        raise ConfigurationError(msg)
    return Parallelism(name="single", strategy="auto", parallelize=whole, spread=SINGLE_FACTS)


class ReplicatedStrategy(DDPStrategy):
    """DistributedDataParallel with gradients sent in bf16, on any device; Lightning's has hooks on GPUs alone."""

    @override
    def _setup_model(self, model: Module) -> DistributedDataParallel:
        replicated = super()._setup_model(model)
        replicated.register_comm_hook(None, bf16_compress_hook)
        return replicated


def ddp(
    *, num_ranks: int, gradients_in: Literal["fp32", "bf16"] = "fp32", timeout_seconds: float = 600.0
) -> Parallelism:
    """Replicate the model and average gradients over ranks; a rank's silence of the timeout ends the run.

    `gradients_in` bf16 sends half the bytes, each gradient rounded to 8 bits of fraction. From three ranks on, torch
    looks for unused parameters: it then keeps its first division into messages, and so each sum's order, for all steps
    of all starts (docs/decisions/0023).
    """
    make = ReplicatedStrategy if gradients_in == "bf16" else DDPStrategy
    strategy = make(
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
        find_unused_parameters=num_ranks > SUMS_OF_ANY_ORDER,
        timeout=timedelta(seconds=timeout_seconds),
    )
    return Parallelism(
        name="ddp",
        strategy=strategy,
        parallelize=lambda model, _: balance_over_ranks(model),
        spread=ddp_facts(gradients_in=gradients_in),
    )


def auto(*, num_ranks: int, timeout_seconds: float = 600.0) -> Parallelism:
    """Choose `single` for one rank and `ddp` for several; for a known device a plan has chosen before."""
    chosen = single(num_ranks=1) if num_ranks == 1 else ddp(num_ranks=num_ranks, timeout_seconds=timeout_seconds)
    return replace(chosen, spread=AUTO_FACTS)


SINGLE_FACTS: Final = ModelSpread(reduces_alone=False, most_ranks=1)


def ddp_facts(*, gradients_in: Literal["fp32", "bf16"] = "fp32") -> ModelSpread:
    """Keep the whole model on every rank, and send gradients out of DDP's buckets, which stay."""
    return ModelSpread(keeps_gradients=True, gradient_bytes=2 if gradients_in == "bf16" else 4)


AUTO_FACTS: Final = ModelSpread(keeps_gradients=True, reduces_alone=False, chooses=True)
