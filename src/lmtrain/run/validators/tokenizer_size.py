"""The sizes of a tokenizer and of its model."""

from lmtrain.errors import ConfigurationError
from lmtrain.run.run_config import RunConfig


def require_size_for_model(config: RunConfig) -> None:
    """Refuse a model sized by a tokenizer of unstated size, and name the size.

    Raises:
        ConfigurationError: `tokenizer.vocab_size` is null and something of the run follows it.
    """
    followers = [node.key for node in (config.model, config.data) if node.get("vocab_size", 0) is None]
    if not followers:
        return
    spec = config.tokenizer.checked(config.allowed).build()
    msg = f"tokenizer.vocab_size=null, but {followers[0]}.vocab_size follows it and decides the model's shape"
    raise ConfigurationError(f"{msg}; this tokenizer's: tokenizer.vocab_size={spec.vocab_size}.")


def require_rows(num_rows: int, *, num_entries: int) -> None:
    """Refuse a model without a row for each entry of the tokenizer.

    Raises:
        ConfigurationError: There are fewer.
    """
    if num_rows < num_entries:
        raise ConfigurationError(
            f"model.vocab_size={num_rows} is below the tokenizer's {num_entries} entries; nearest valid: "
            f"{num_entries}, or text prepared with a tokenizer of at most {num_rows}: under init_from, with the "
            "model's own."
        )
