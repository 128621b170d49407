"""The objective of a step where it is not the loss of next tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.training.token_batch import TokenBatch


class ObjectiveSums(NamedTuple):
    """A micro-batch's sums: those of a `LossTotal`, with the objective's own in place of nats.

    `further` [K] are more, float64: the divisor of gradients and of the loss, the number of examples, then the
    measures' sums over examples.
    """

    objective: Tensor
    nats: Tensor
    num_tokens: Tensor
    further: Tensor


class Objective(ABC):
    """A micro-batch's own sums; `measures` name the means over examples, as curves of a run."""

    num_iterations: int = 1  # steps that learn from the same answers

    @property
    @abstractmethod
    def task(self) -> str:
        """Return the word of the task, for messages."""

    @property
    @abstractmethod
    def measures(self) -> tuple[str, ...]:
        """Return the names of the further means."""

    def require(self, model: LanguageModel) -> None:
        """Refuse a mixture of experts, whose penalty is of next tokens, and predictions of further ones."""
        if model.num_future_tokens:
            raise ConfigurationError(
                f"task={self.task}: model.num_future_tokens adds to the loss of next tokens; set it to 0."
            )
        if any(isinstance(module, MixtureOfExperts) for module in model.modules()):
            raise ConfigurationError(f"task={self.task}: model.experts adds a penalty to the loss; use a dense model.")

    @abstractmethod
    def __call__(self, model: LanguageModel, batch: Tensor | TokenBatch, /) -> ObjectiveSums:
        """Return a micro-batch's sums."""

    def begin(self, *, step: int, micro_step: int, seed: int) -> None:  # noqa: B027  a choice
        """Receive the number of the micro-batch about to come, and its seed, the same whenever it is done again."""

    def state(self) -> dict[str, Any] | None:
        """Return this rank's part of a checkpoint taken now, None if there is none."""
        return None

    def load(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from a checkpoint's part."""


def of_rank(states: Sequence[dict[str, Any]], rank: int, num_ranks: int) -> dict[str, Any]:
    """Return a rank's own state."""
    if len(states) != num_ranks:
        raise ConfigurationError(
            f"the checkpoint lies between steps that learn from the same answers, written on "
            f"{format_count(len(states), 'rank')}, and this run has {num_ranks}; go on with as many, "
            "or resume from a step that writes its own."
        )
    return states[rank]
