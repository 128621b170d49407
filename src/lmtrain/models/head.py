"""The output head and the loss that a model calls with it.

B batch, T tokens, C tokens of a chunk, D width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from typing_extensions import override


class _Kept(torch.autograd.Function):
    """The copy going forward, the master going back."""

    @staticmethod
    @override
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, master: Float[Tensor, "*shape"], copy: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*shape"]:
        ctx.dtype = master.dtype
        return copy.view_as(copy)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient.to(ctx.dtype), None


def kept_weight(master: Tensor, copy: Tensor) -> Tensor:
    """Return `copy`, with the rounded values of `master`; gradients go to the master."""
    return _Kept.apply(master, copy)


class Rounding:
    """A rounding of the operands of a head's three products before `@` multiplies them, C tokens at a time; here none.

    Gradients of logits come times `gradient_scale` in `gradient_dtype` (None: the products'), the rounding's choices.
    """

    gradient_scale: float = 1.0
    gradient_dtype: torch.dtype | None = None

    def weight(self, weight: Float[Tensor, "V D"], /) -> tuple[Float[Tensor, "D V"], Float[Tensor, "V D"]]:
        """Return the factor of states, and the factor of gradients of logits."""
        return weight.T, weight

    def states(self, states: Float[Tensor, "C D"], /) -> Float[Tensor, "C D"]:
        """Return them for both of their products."""
        return states

    def gradient(self, scaled: Float[Tensor, "C V"], dtype: torch.dtype, /) -> Float[Tensor, "C V"]:
        """Return a gradient of logits, scaled and cast, as one no longer scaled with products in `dtype`."""
        del dtype
        return scaled


@final
@dataclass(frozen=True)
class OutputHead:
    """A loss's projection of hidden states; a loss without all logits takes `weight` and `soft_cap` instead.

    `weight` [V, D] is the model's own parameter, or the token embedding where they are tied; made in each forward,
    and so the whole weight also where a strategy keeps shards. `soft_cap` c bends logits to c tanh(logits / c)
    (Gemma 2, arXiv 2408.00118 section 2); None leaves them as they are. `copy` [V, D] holds the weight's values in the
    format of matrix products, without a gradient; None where no copy is kept. `rounding` is for the
    operands of a loss's own products in training; None leaves them as they are.
    """

    weight: Float[Tensor, "V D"]
    soft_cap: float | None = None
    copy: Float[Tensor, "V D"] | None = None
    rounding: Rounding | None = None

    @property
    def product_weight(self) -> Float[Tensor, "V D"]:
        """Return the weight as products take it: its kept copy if any, with the weight's gradient."""
        return self.weight if self.copy is None else kept_weight(self.weight, self.copy)

    def __call__(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Score the next token: [B, T, D] -> [B, T, V]; in fp32 where a soft cap bends the scores."""
        scores = F.linear(hidden, self.product_weight)
        if self.soft_cap is None:
            return scores
        return self.soft_cap * torch.tanh(scores.float() / self.soft_cap)


class LossTotal(NamedTuple):
    """Sums over the valid targets, each a scalar on the device: fp32, float64, int64.

    `objective` is the scalar to differentiate; `nats` is plain cross-entropy, without a gradient and without any
    penalty. It is summed in float64, since an fp32 sum of a large batch is off in the digits for comparing bits per
    byte.
    """

    objective: Tensor
    nats: Tensor
    num_tokens: Tensor


@runtime_checkable
class Loss(Protocol):
    """The score of targets by hidden states and a head."""

    def __call__(
        self, project: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], /
    ) -> LossTotal:
        """Project hidden states [B, T, D] to logits [B, T, V] and score targets [B, T]."""
        ...


def with_penalty(total: LossTotal, penalty: Float[Tensor, ""]) -> LossTotal:
    """Add a penalty to the objective alone."""
    return total._replace(objective=total.objective + penalty)
