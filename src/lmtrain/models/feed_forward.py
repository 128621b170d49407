"""The position-wise layers of a block: SwiGLU, squared ReLU and GELU.

D width, F feed-forward width.
"""

from typing import Literal, final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.models.swiglu import swiglu

Activation = Literal["swiglu", "relu_squared"]
ACTIVATIONS: tuple[Activation, ...] = ("swiglu", "relu_squared")
GeluApproximate = Literal["tanh", "none"]  # torch's words
GELU_APPROXIMATES: tuple[GeluApproximate, ...] = ("tanh", "none")


@final
class SwiGLU(nn.Module):
    """Gate an up-projection by the SiLU of another, then project down (arXiv 2002.05202)."""

    def __init__(self, width: int, feed_forward_width: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * feed_forward_width, bias=False)
        self.down = nn.Linear(feed_forward_width, width, bias=False)

    @property
    def fused_rows(self) -> dict[str, tuple[int, ...]]:
        """Return the rows of each matrix in a fused weight: gate, up."""
        return {"gate_up.weight": (self.down.in_features,) * 2}

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Transform each token: [B, T, D] -> [B, T, D]."""
        return self.down(swiglu(self.gate_up(x)))


@final
class SquaredReLU(nn.Module):
    """Project up, square the positive values, project down (arXiv 2109.08668)."""

    def __init__(self, width: int, feed_forward_width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, feed_forward_width, bias=False)
        self.down = nn.Linear(feed_forward_width, width, bias=False)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Transform each token: [B, T, D] -> [B, T, D]."""
        return self.down(F.relu(self.up(x)).square())


@final
class GELU(nn.Module):
    """Project up, apply GELU (arXiv 1606.08415) by tanh or exactly, project down, with biases as GPT-2 has.

    Raises: ConfigurationError for any other approximation.
    """

    def __init__(
        self, width: int, feed_forward_width: int, *, biases: bool = True, approximate: GeluApproximate = "tanh"
    ) -> None:
        super().__init__()
        if approximate not in GELU_APPROXIMATES:
            known = " or ".join(GELU_APPROXIMATES)
            near = suggest(str(approximate), GELU_APPROXIMATES)
            raise ConfigurationError(f"model.gelu_approximate={approximate} is not {known}.{near}")
        self.approximate: GeluApproximate = approximate
        self.up = nn.Linear(width, feed_forward_width, bias=biases)
        self.down = nn.Linear(feed_forward_width, width, bias=biases)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Transform each token: [B, T, D] -> [B, T, D]."""
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


def build_feed_forward(activation: str, width: int, feed_forward_width: int) -> SwiGLU | SquaredReLU:
    """Build the feed-forward layer of model.activation.

    Raises: ConfigurationError for any other name.
    """
    if activation == "swiglu":
        return SwiGLU(width, feed_forward_width)
    if activation == "relu_squared":
        return SquaredReLU(width, feed_forward_width)
    known = " or ".join(ACTIVATIONS)
    raise ConfigurationError(f"model.activation={activation} is not {known}.{suggest(activation, ACTIVATIONS)}")
