"""A loss sums over the valid targets: the mean is taken later, over any number of micro-steps and ranks.

The z-loss keeps log Z near 0: PaLM, arXiv 2204.02311 section 5. B batch, T tokens, D width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from lmtrain.accounting.options.ranges import require_number
from lmtrain.models.head import Loss, LossTotal, OutputHead

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class TokenLoss(ABC):
    """Score targets against the head's logits of hidden states; `z_loss_weight` times log Z squared is added.

    Targets equal to `ignore_index` count nowhere.
    """

    z_loss_weight: float = 0.0
    ignore_index: int = -100

    def __post_init__(self) -> None:
        require_number("loss.z_loss_weight", self.z_loss_weight, at_least=0, usual="0")

    @abstractmethod
    def __call__(
        self, project: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], /
    ) -> LossTotal:
        """Sum the loss of hidden states [B, T, D] over targets [B, T]."""

    def compiled(self, compiler: Compiler) -> Loss:
        """Return this loss for a run with compiled blocks."""
        return compiler(self.__call__)

    def logit_tokens(self, num_tokens: int) -> int:
        """Return for how many tokens logits are in memory at once."""
        return num_tokens

    def require_fit(self, *, device_type: str, soft_cap: float | None) -> None:
        """Check this loss for such a device and such a head."""
        del device_type, soft_cap
