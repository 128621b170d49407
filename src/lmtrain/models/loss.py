"""A loss as models call it: sums over the valid targets, with a model's penalty, if any.

B batch, T tokens, D width.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from lmtrain.models.head import OutputHead


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
