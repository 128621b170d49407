"""Whether the head's products run in fp8, decided from a config alone: for plans too, without torch."""

from lmtrain.accounting.options.parts import LossFacts
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of


def require_float8_head(config: RunConfig) -> None:
    """Refuse `precision.head` where it cannot be.

    Raises:
        ConfigurationError: It is neither true nor false, or the loss lets others make the head's products.
    """
    head, loss = config.precision.get("head", False), config.loss.target
    if not isinstance(head, bool):
        raise ConfigurationError(f"precision.head={head} is not of type bool; nearest valid: false.")
    found = facts_of(config.loss.values, LossFacts, allowed=config.allowed) or LossFacts()
    if head and not found.makes_head_products:
        raise ConfigurationError(
            f"precision.head=true needs a loss that makes the head's products itself, and loss={loss.split('.')[-2]} "
            f"does not; nearest valid: {one_of(words_of(LossFacts, lambda other: other.makes_head_products))}."
        )
