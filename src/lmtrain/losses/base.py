"""What a loss is: sums over the valid targets, so that a mean can be taken over any number of micro-steps and ranks.

The z-loss keeps log Z near 0: PaLM, arXiv 2204.02311 section 5. B batch, T tokens, D width, V vocabulary.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmtrain.errors import ConfigurationError


class LossTotal(NamedTuple):
    """Sums over the valid targets, each a scalar on the device: fp32, float64, int64.

    `objective` is what is differentiated; `nats` is plain cross-entropy, without a gradient, whatever was added. It is
    summed in float64, since an fp32 sum of a large batch is off in the digits that bits per byte are compared by.
    """

    objective: Tensor
    nats: Tensor
    num_tokens: Tensor


@runtime_checkable
class Rounding(Protocol):
    """What the operands of a head's three products become before `@` multiplies them, in C tokens at a time.

    Gradients of logits come times `gradient_scale`, which is of the rounding's choice.
    """

    gradient_scale: float

    def weight(self, weight: Float[Tensor, "V D"], /) -> tuple[Float[Tensor, "D V"], Float[Tensor, "V D"]]:
        """Return what states are multiplied by, and what gradients of logits are."""
        ...

    def states(self, states: Float[Tensor, "C D"], /) -> Float[Tensor, "C D"]:
        """Return them for both products that they take part in."""
        ...

    def gradient(self, scaled: Float[Tensor, "C V"], dtype: torch.dtype, /) -> Float[Tensor, "C V"]:
        """Return a gradient of logits, no longer scaled, whose products come out in `dtype`."""
        ...


@runtime_checkable
class OutputHead(Protocol):
    """What turns hidden states into logits, c tanh(logits / c) where there is a soft cap c."""

    @property
    def weight(self) -> Float[Tensor, "V D"]:
        """Return the parameter."""
        ...

    @property
    def soft_cap(self) -> float | None:
        """Return c, or None."""
        ...

    @property
    def product_weight(self) -> Float[Tensor, "V D"]:
        """Return the parameter as products take it: in their format where a copy is kept, else as it is."""
        ...

    @property
    def rounding(self) -> Rounding | None:
        """Return what the operands are rounded by in training, where a loss makes the products itself."""
        ...

    def __call__(self, hidden: Float[Tensor, "B T D"], /) -> Float[Tensor, "B T V"]:
        """Project: [B, T, D] -> [B, T, V]."""
        ...


@dataclass(frozen=True, kw_only=True)
class TokenLoss(ABC):
    """Score targets against what the head makes of hidden states; `z_loss_weight` times log Z squared is added.

    Targets equal to `ignore_index` count nowhere.
    Raises: ConfigurationError for a negative weight.
    """

    z_loss_weight: float = 0.0
    ignore_index: int = -100

    def __post_init__(self) -> None:
        if not 0 <= self.z_loss_weight < math.inf:
            raise ConfigurationError(f"loss.z_loss_weight={self.z_loss_weight} is not 0 or above; nearest valid: 0.")

    @abstractmethod
    def __call__(
        self, project: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], /
    ) -> LossTotal:
        """Sum the loss of hidden states [B, T, D] over targets [B, T]."""

    def logit_tokens(self, num_tokens: int) -> int:
        """Return for how many tokens logits are in memory at once."""
        return num_tokens

    def require_fit(self, *, device_type: str, soft_cap: float | None) -> None:
        """Make sure that this loss can be computed on such a device and for such a head.

        Raises:
            ConfigurationError: It cannot.
            EnvironmentProblem: A package is missing or too old.
        """
        del device_type, soft_cap
