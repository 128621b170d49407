"""The common base of language models: tokens in, hidden states, logits or a loss out.

B batch, T tokens, D width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.models.documents import Documents
from lmtrain.models.head import Loss, LossTotal, OutputHead, with_penalty
from lmtrain.models.mixture_of_experts import MixtureOfExperts

IGNORED: Final = -100  # a target that no loss counts


class WholeStep(Protocol):
    """A step of a model that no rank has whole: all micro-batches at once, by the stages of a pipeline."""

    def run(self, batches: Sequence[tuple[Tensor, Tensor, Documents | None]], loss: Loss, *, scale: float) -> LossTotal:
        """Add up gradients of inputs, targets [B, T] and documents over all data-parallel ranks, times `scale`.

        Return this group's sums over the micro-batches, the same on each of its ranks.
        """
        ...

    def norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """Return the 2-norm of the gradients of all stages: []."""
        ...

    def sum_over_copies(self, sums: Tensor) -> Tensor:
        """Add up a tensor over the ranks with the same layers, in place."""
        ...


class LanguageModel(nn.Module, ABC):
    """A causal model of tokens, written for one device; strategies, precision and compilation come from outside.

    `documents` int [B, T] is each token's document within its row, never falling along a row: tokens see their own
    document alone, with positions from 0. None is one document a row; with `EarlierTokens`
    tokens go on from those of earlier forward passes.
    """

    vocab_size: int
    max_context_tokens: int
    num_future_tokens: int = 0  # the last blocks, of training alone, each for a token further on
    shares_beginnings: bool = True  # whether texts that begin alike have the same keys and values there
    reread_beyond: int | None = None  # a cached text that grows longer is read again, once
    start_line: str | None = None  # on this model, printed once at the start of a run
    whole_step: WholeStep | None = None  # of a model in stages, which does not train a micro-batch at a time

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The repeated layers, compiled, recomputed and sharded one by one."""

    @property
    def last_norm(self) -> nn.Module | None:
        """The norm after the layers, compiled with them; None where there is none to compile."""
        return None

    @abstractmethod
    def features(
        self, tokens: Int[Tensor, "B T"], documents: Documents | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        """Run the layers and the last norm: [B, T] -> [B, T, D], and a penalty to minimise with the loss, or None.

        The penalty is a sum over tokens, as of a router for an even use of its experts.
        """

    @abstractmethod
    def output_head(self) -> OutputHead:
        """Return the map from hidden states to logits."""

    @abstractmethod
    def initialize_weights(self, generator: torch.Generator) -> None:
        """Fill every parameter and buffer in place, the same for the same generator state, also after to_empty."""

    @abstractmethod
    def shape(self) -> ModelShape:
        """Count parameters by kind; works on the meta device."""

    def hidden_states(self, tokens: Int[Tensor, "B T"], documents: Documents | None = None) -> Float[Tensor, "B T D"]:
        """Run the layers and the last norm: [B, T] -> [B, T, D]."""
        return self.features(tokens, documents)[0]

    def logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """Score the next token: [B, T, D] -> [B, T, V]."""
        return self.output_head()(hidden)

    @staticmethod
    def score(head: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], loss: Loss) -> LossTotal:
        """Score targets [B, T] by hidden states [B, T, D].

        Not part of a model: it compiles next to blocks under any strategy's changes to the model's own parameters.
        """
        return loss(head, hidden, targets)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"] | None = None,
        loss: Loss | None = None,
        documents: Documents | None = None,
    ) -> Float[Tensor, "B T V"] | LossTotal:
        """Predict the next token, [B, T] -> [B, T, V]; with targets [B, T] and a loss, return its sums instead.

        Both go through one forward: the hooks of compilation, DDP and FSDP fire with any loss. A penalty is
        added to the objective, never to the nats.
        """
        hidden, penalty = self.features(tokens, documents)
        if targets is None or loss is None:
            return self.logits(hidden)
        sums = self.score(self.output_head(), hidden, targets, loss)
        return sums if penalty is None else with_penalty(sums, penalty)


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode, and at the end of the block back into its own."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def unchanged(model: LanguageModel) -> LanguageModel:
    """Return the model as it is: the "off" of every change."""
    return model


def shape_of(
    model: LanguageModel,
    *,
    num_tied_head_parameters: int,
    attention: tuple[AttentionShape, ...],
    num_streams: int = 1,
) -> ModelShape:
    """Count parameters: weights of nn.Linear and of experts are matmuls, weights of nn.Embedding lookups.

    `num_tied_head_parameters` are those of the head wherever it multiplies and is not the only use of a nn.Linear.
    Experts not chosen for a token are neither active nor matmuls. Weights without a gradient are frozen.
    """
    modules = list(model.modules())
    experts = [module for module in modules if isinstance(module, MixtureOfExperts)]
    num_idle = sum(module.num_idle_parameters for module in experts)
    num_products = sum(module.num_product_parameters for module in experts)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    linears = [module.weight for module in modules if isinstance(module, nn.Linear)]
    tables = [module.weight for module in modules if isinstance(module, nn.Embedding)]
    num_matmul = sum(weight.numel() for weight in linears)
    num_frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    num_frozen_experts = sum(module.num_product_parameters for module in experts if not module.gate_up.requires_grad)
    is_head_frozen = num_frozen > 0 and not any(table.requires_grad for table in tables)
    return ModelShape(
        num_parameters=num_parameters,
        num_embedding_parameters=sum(table.numel() for table in tables),
        num_matmul_parameters=num_matmul + num_tied_head_parameters + num_products,
        num_active_parameters=num_parameters - num_idle,
        attention=attention,
        num_frozen_parameters=num_frozen,
        num_frozen_matmul_parameters=sum(weight.numel() for weight in linears if not weight.requires_grad)
        + num_frozen_experts
        + (num_tied_head_parameters if is_head_frozen else 0),
        width=model.output_head().weight.shape[1],
        layer_vectors=2 + 2 * sum(one.experts.num_experts_per_token for one in experts) / max(1, len(attention)),
        num_streams=num_streams,
    )
