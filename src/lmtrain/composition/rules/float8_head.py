"""Whether the head's products run in fp8, told from a config alone: for plans too, which do without torch."""

from collections.abc import Sequence
from typing import Any

from lmtrain.accounting.options.parts import LossFacts
from lmtrain.composition.nodes.facts import facts_of
from lmtrain.errors import ConfigurationError


def require_float8_head(config: dict[str, Any], *, allowed: Sequence[str] = ()) -> None:
    """Refuse `precision.head` where it cannot be; `allowed` are the packages beside our own whose options are asked.

    Raises:
        ConfigurationError: It is neither true nor false, or the loss lets others make the head's products.
    """
    head, loss = config["precision"].get("head", False), str(config["loss"]["_target_"])
    if not isinstance(head, bool):
        raise ConfigurationError(f"precision.head={head} is not of type bool; nearest valid: false.")
    if head and not (facts_of(config["loss"], LossFacts, allowed=allowed) or LossFacts()).makes_head_products:
        raise ConfigurationError(
            f"precision.head=true needs a loss that makes the head's products itself, and loss={loss.split('.')[-2]} "
            "does not; nearest valid: loss=chunked."
        )
