"""The output head: hidden states to the scores of every next token.

B batch, T tokens, D width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lmtrain.models.kept_weight import kept_weight


@final
@dataclass(frozen=True)
class OutputHead:
    """What a loss projects hidden states by; a loss that never builds all logits takes `weight` and `soft_cap` instead.

    `weight` [V, D] is the model's own parameter, or the token embedding where they are tied; made anew in each forward,
    so that it is the whole weight also where a strategy keeps shards. `soft_cap` c bends logits to c tanh(logits / c)
    (Gemma 2, arXiv 2408.00118 section 2); None leaves them as they are. `copy` [V, D] holds the weight's values in the
    format of matrix products, without a gradient; None where no copy is kept. `rounding` is what a loss in training
    makes the operands of its own products by (`lmtrain.losses.base.Rounding`); None leaves them as they are.
    """

    weight: Float[Tensor, "V D"]
    soft_cap: float | None = None
    copy: Float[Tensor, "V D"] | None = None
    rounding: Any = None  # losses and models do not import one another

    @property
    def product_weight(self) -> Float[Tensor, "V D"]:
        """Return the weight as products take it: its copy where one is kept, whose gradient is the weight's."""
        return self.weight if self.copy is None else kept_weight(self.weight, self.copy)

    def __call__(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Score the next token: [B, T, D] -> [B, T, V]; in fp32 where a soft cap bends the scores."""
        scores = F.linear(hidden, self.product_weight)
        if self.soft_cap is None:
            return scores
        return self.soft_cap * torch.tanh(scores.float() / self.soft_cap)
