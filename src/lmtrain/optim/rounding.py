"""Write fp32 numbers into bf16 up or down by chance, to keep updates too small for bf16 on average.

Rounding to nearest loses every update below 1/512 of a weight; see https://arxiv.org/abs/2010.06192.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from lmtrain.errors import ConfigurationError
from lmtrain.optim.sharded import local

LOW_BITS = 16  # the bits of an fp32 beyond a bf16's
SEED_STRIDE = 1_000_003  # the seeds of two groups meet only after a million steps


def copy_rounded_(target: Tensor, source: Tensor, *, generator: torch.Generator | None = None) -> None:
    """Write `source` into `target`; from fp32 into bf16 each value goes to a neighbour by chance, its mean kept.

    A sharded tensor's own part is written. The noise is `generator`'s, None for torch's own one.
    """
    target, source = local(target), local(source)
    if target.dtype != torch.bfloat16 or source.dtype != torch.float32:
        target.copy_(source)
        return
    noise = torch.randint(1 << LOW_BITS, source.shape, dtype=torch.int32, device=source.device, generator=generator)
    bits = noise.add_(source.view(torch.int32)).bitwise_and_(-1 << LOW_BITS)
    target.copy_(bits.view(torch.float32))


def noise_of_step(step: int, *, group: int, device: torch.device) -> torch.Generator:
    """Return the noise of a group in a step: alike on every rank, for copies of a weight to stay equal."""
    return torch.Generator(device).manual_seed(step + SEED_STRIDE * group)


def require_bf16(weights: Iterable[Tensor]) -> None:
    """Refuse to round weights by chance where all of them are exact; those on the meta device have no format yet.

    Raises:
        ConfigurationError: No weight is bf16.
    """
    if not any(weight.is_meta or weight.dtype == torch.bfloat16 for weight in weights):
        msg = "stochastic rounding has no effect: no weight is bf16; use a precision of bf16 weights, or leave it out."
        raise ConfigurationError(msg)
