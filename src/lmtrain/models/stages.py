"""Models whose layers may run in parts, for ranks with a stage of them each. B batch, T tokens, D width."""

from abc import abstractmethod
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from lmtrain.models.base import LanguageModel
from lmtrain.models.documents import Documents


class LayerStream(NamedTuple):
    """What layers hand on: the residual stream `x`, its first value, its value in the middle layer, and penalties.

    `penalty` [] is the sum of earlier layers', None for none yet.
    """

    x: Float[Tensor, "B T D"]
    embedded: Float[Tensor, "B T D"]
    middle: Float[Tensor, "B T D"]
    penalty: Float[Tensor, ""] | None = None


class StagedModel(LanguageModel):
    """A model that runs any of its layers alone, with tokens and documents known everywhere.

    `begins_with` and `ends_with` name its modules before and after the layers. Tables of one layer are modules
    numbered like it; other modules without parameters are in every stage.
    """

    begins_with: tuple[str, ...]
    ends_with: tuple[str, ...]

    @property
    def handed_on(self) -> tuple[str, ...]:
        """Return the parts of the stream that later layers read."""
        return ("x",)

    @abstractmethod
    def begin(self, tokens: Int[Tensor, "B T"], documents: Documents | None) -> LayerStream:
        """Start the stream before the first layer."""

    @abstractmethod
    def through(
        self, stream: LayerStream, numbers: range, tokens: Int[Tensor, "B T"], documents: Documents | None
    ) -> LayerStream:
        """Run the layers of these numbers, from 0."""

    @abstractmethod
    def end(self, stream: LayerStream) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        """Run the last norm: hidden states, and the penalties to minimise with the loss, or None."""
