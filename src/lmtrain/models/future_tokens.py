"""Multi-token prediction: modules behind the layers that predict tokens further on, of training alone.

DeepSeek-V3, arXiv 2412.19437 section 2.2: module k, from 1, takes the hidden state of the module before it (of the
model for the first) and the embedding of token i + k, both normed, through one matrix and one block, and predicts token
i + k + 1 by the model's head. The embedding comes first, and each module has its norm before the head, as in DeepSeek's
files. B batch, T tokens, D width, E = 2 D.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from lmtrain.models.base import IGNORED
from lmtrain.models.residual_stream import RMSNorm
from lmtrain.models.weight_init import fill_linear


@final
class FutureToken(nn.Module):
    """One module, with a block like the model's last layer."""

    whole_in_groups = ("inputs",)

    def __init__(self, width: int, block: nn.Module, *, norm: Callable[[], RMSNorm]) -> None:
        super().__init__()
        self.token_norm, self.hidden_norm, self.output_norm = norm(), norm(), norm()
        self.inputs = nn.Linear(2 * width, width, bias=False)
        self.future_block = block

    def forward(
        self, hidden: Float[Tensor, "B T D"], embedded: Float[Tensor, "B T D"], positions: Any
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        """Return hidden states for the next module, those for the head, and the block's penalty.

        `embedded` [B, T, D] are the tokens that each hidden state [B, T, D] of the module before is followed by.
        """
        joined = torch.cat((self.token_norm(embedded), self.hidden_norm(hidden)), dim=-1)  # [B, T, E]
        made, penalty = self.future_block(self.inputs(joined), embedded, positions)
        return made, self.output_norm(made), penalty

    def following(self, embedded: Float[Tensor, "B T D"], num: int) -> Float[Tensor, "B T D"]:
        """Return the embeddings of the tokens `num` on."""
        return shifted(embedded, num)

    def initialize_weights(self, generator: torch.Generator, *, std: float) -> None:
        """Fill all but the block."""
        fill_linear(self.inputs, std=std, generator=generator)
        for norm in (self.token_norm, self.hidden_norm, self.output_norm):
            norm.initialize_weights()


def shifted(x: Shaped[Tensor, "B T *D"], num: int, *, fill: int = 0) -> Shaped[Tensor, "B T *D"]:
    """Return the values `num` tokens on, and `fill` beyond the row: [B, T, ...] -> [B, T, ...]."""
    return torch.cat((x[:, num:], torch.full_like(x[:, :num], fill)), dim=1)


def further_targets(targets: Int[Tensor, "B T"], documents: Int[Tensor, "B T"] | None, num: int) -> Int[Tensor, "B T"]:
    """Return the targets `num` tokens on, without those of another document: [B, T] -> [B, T].

    A row does not say whose document its very last target is of: it counts as that of the last input.
    """
    further = shifted(targets, num, fill=IGNORED)
    if documents is None:
        return further
    of_target = torch.cat((documents[:, num + 1 :], documents[:, -1:].expand(-1, num + 1)), dim=1)
    return further.masked_fill(of_target[:, : targets.shape[1]] != documents, IGNORED)
