"""What every language model here is: tokens in, hidden states, logits or a loss out.

B batch, T tokens, D width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from lmtrain.accounting.model_shape import AttentionShape, ModelShape

LossSums = tuple[Tensor, Tensor, Tensor]


class Loss(Protocol):
    """Sums over the valid targets: (objective to differentiate, nats, number of tokens)."""

    def __call__(self, project: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, /) -> LossSums:
        """Project hidden states [B, T, D] to logits [B, T, V] and score targets [B, T]."""
        ...


class LanguageModel(nn.Module, ABC):
    """A causal model of tokens, written for one device; strategies, precision and compilation come from outside."""

    vocab_size: int
    max_context_tokens: int

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The repeated layers, which are compiled, recomputed and sharded one by one."""

    @abstractmethod
    def hidden_states(self, tokens: Tensor) -> Tensor:
        """Run the layers and the last norm: [B, T] -> [B, T, D]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Score the next token: [B, T, D] -> [B, T, V]."""

    @abstractmethod
    def initialize_weights(self, generator: torch.Generator) -> None:
        """Fill every parameter and buffer in place, the same for the same generator state, also after to_empty."""

    @abstractmethod
    def shape(self) -> ModelShape:
        """Count parameters by kind; works on the meta device."""

    def forward(self, tokens: Tensor, targets: Tensor | None = None, loss: Loss | None = None) -> Tensor | LossSums:
        """Predict the next token, [B, T] -> [B, T, V]; with targets [B, T] and a loss, return its sums instead.

        Both go through one forward, so that the hooks of compilation, DDP and FSDP fire whatever the loss.
        """
        hidden = self.hidden_states(tokens)
        if targets is None or loss is None:
            return self.logits(hidden)
        return loss(self.logits, hidden, targets)


def shape_of(model: nn.Module, *, num_tied_head_parameters: int, attention: tuple[AttentionShape, ...]) -> ModelShape:
    """Count the parameters of a dense model: weights of nn.Linear are matmuls, weights of nn.Embedding lookups."""
    modules = list(model.modules())
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    num_matmul = sum(module.weight.numel() for module in modules if isinstance(module, nn.Linear))
    return ModelShape(
        num_parameters=num_parameters,
        num_embedding_parameters=sum(m.weight.numel() for m in modules if isinstance(m, nn.Embedding)),
        num_matmul_parameters=num_matmul + num_tied_head_parameters,
        num_active_parameters=num_parameters,
        attention=attention,
    )
