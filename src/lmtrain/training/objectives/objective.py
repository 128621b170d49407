"""The objective of a step where it is not the loss of next tokens."""

from typing import NamedTuple, Protocol

from torch import Tensor

from lmtrain.models.base import LanguageModel
from lmtrain.training.batches.token_batch import TokenBatch


class ObjectiveSums(NamedTuple):
    """A micro-batch's sums: those of a `LossTotal`, with the objective's own in place of nats.

    `further` [K] are more, float64, the first of them the divisor of gradients and of the loss.
    """

    objective: Tensor
    nats: Tensor
    num_tokens: Tensor
    further: Tensor


class Objective(Protocol):
    """A micro-batch's sums of its own; `measures` name the means after the count, as curves of a run.

    `rows_together` neighbouring rows of the data belong together.
    """

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the names of the further means."""
        ...

    @property
    def rows_together(self) -> int:
        """Return the number of rows that are one example."""
        ...

    def require(self, model: LanguageModel) -> None:
        """Refuse an unfit model.

        Raises: ConfigurationError.
        """
        ...

    def __call__(self, model: LanguageModel, batch: Tensor | TokenBatch, /) -> ObjectiveSums:
        """Return a micro-batch's sums, the count first among the further ones."""
        ...
