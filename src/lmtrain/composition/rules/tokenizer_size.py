"""The size of a tokenizer, told before a model's shape follows it."""

from typing import Any

from lmtrain.errors import ConfigurationError


def require_size_for_model(config: dict[str, Any], *, allowed: list[str]) -> None:
    """Refuse a model that follows the size of a tokenizer which nobody has told, and say the size.

    Raises:
        ConfigurationError: `tokenizer.vocab_size` is null and something of the run follows it.
    """
    followers = [name for name in ("model", "data") if config[name].get("vocab_size", 0) is None]
    if not followers:
        return
    from lmtrain.composition.nodes.check import check_node
    from lmtrain.composition.nodes.instantiate import instantiate

    spec = instantiate(check_node(config["tokenizer"], key="tokenizer", allowed=allowed), key="tokenizer")
    msg = f"tokenizer.vocab_size=null, but {followers[0]}.vocab_size follows it and decides the model's shape"
    raise ConfigurationError(f"{msg}; this tokenizer's: tokenizer.vocab_size={spec.vocab_size}.")
