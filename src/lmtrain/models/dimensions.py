"""Refuse dimensions that cannot be, with the nearest that can."""

from lmtrain.errors import ConfigurationError


def check_positive(**dimensions: int) -> None:
    """Raise ConfigurationError for the first of model.<name>=value that is below 1."""
    for name, value in dimensions.items():
        if value < 1:
            raise ConfigurationError(f"model.{name}={value} is below 1; nearest valid: 1.")


def check_multiple(name: str, value: int, of_name: str, of: int) -> None:
    """Raise ConfigurationError unless model.<name>=value is a multiple of model.<of_name>=of."""
    if value % of:
        below, above = value // of * of, (value // of + 1) * of
        nearest = f"{below} or {above}" if below else f"{above}"
        raise ConfigurationError(
            f"model.{name}={value} is not a multiple of model.{of_name}={of}; nearest valid: {nearest}."
        )


def check_context(num_tokens: int, max_context_tokens: int) -> None:
    """Raise ConfigurationError for a sequence longer than the model was built for."""
    if num_tokens > max_context_tokens:
        raise ConfigurationError(
            f"batch.context_tokens={num_tokens} is over model.max_context_tokens={max_context_tokens}; "
            f"nearest valid: {max_context_tokens}."
        )
