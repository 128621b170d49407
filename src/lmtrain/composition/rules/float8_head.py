"""Whether the head's products run in fp8, told from a config alone: for plans too, which do without torch."""

from typing import Final

from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError

MAKES_PRODUCTS: Final = "lmtrain.losses.chunked.ChunkedCrossEntropy"


def require_float8_head(config: RunConfig) -> None:
    """Refuse `precision.head` where it cannot be.

    Raises:
        ConfigurationError: It is neither true nor false, or the loss lets others make the head's products.
    """
    head, loss = config.precision.get("head", False), config.loss.target
    if not isinstance(head, bool):
        raise ConfigurationError(f"precision.head={head} is not of type bool; nearest valid: false.")
    if head and loss != MAKES_PRODUCTS:
        raise ConfigurationError(
            f"precision.head=true needs a loss that makes the head's products itself, and loss={loss.split('.')[-2]} "
            "does not; nearest valid: loss=chunked."
        )
