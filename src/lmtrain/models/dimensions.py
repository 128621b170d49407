"""Refuse impossible dimensions of a model, with a possible one."""

import math
from collections.abc import Sequence
from typing import Final

from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError

# The parts of every model, at least 1 of each.
REQUIRED: Final = ("width", "num_layers", "num_heads", "feed_forward_width", "vocab_size", "max_context_tokens")

# Beyond which a dimension is a slip of the pen: a tensor of two of them would have no countable size.
MOST: Final = 2**24
MOST_CONTEXT_TOKENS: Final = 2**31


def check_possible(key: str, value: int) -> None:
    """Raise ConfigurationError for an impossible dimension of a tensor, under the typed key."""
    most = MOST_CONTEXT_TOKENS if key.endswith("context_tokens") else MOST
    if value > most:
        raise ConfigurationError(f"{key}={value:.6g} is more than any model can have; at most {most}.")


def check_positive(**dimensions: int) -> None:
    """Raise ConfigurationError for the first model.<name>=value below 1."""
    for name, value in dimensions.items():
        require_count(f"model.{name}", value)


def check_not_negative(**settings: int | float | None) -> None:
    """Raise ConfigurationError for the first of model.<name>=value below 0 or not finite; None is skipped."""
    for name, value in settings.items():
        if value is not None and not 0 <= value < math.inf:
            raise ConfigurationError(f"model.{name} must be finite and at least 0, got {value}. Did you mean 0?")


def check_above_zero(*, usual: str, **settings: int | float | None) -> None:
    """Raise ConfigurationError for the first model.<name>=value that is not finite and above 0; None is skipped."""
    for name, value in settings.items():
        if value is not None and not 0 < value < math.inf:
            key = f"model.{name.replace('__', '.')}"
            raise ConfigurationError(f"{key} must be finite and above 0, got {value}. Did you mean {usual}?")


def check_heads(*, width: int | None, num_heads: int, num_kv_heads: int = 1, is_rotary: bool = True) -> None:
    """Raise ConfigurationError for indivisible heads; a width of None has no share in a head's (model.head_width has).

    Rotary heads have an even width.
    """
    if num_heads % num_kv_heads:
        nearest = math.gcd(num_heads, num_kv_heads)
        raise ConfigurationError(
            f"model.num_kv_heads must divide model.num_heads={num_heads}, got {num_kv_heads}. Did you mean {nearest}?"
        )
    unit = num_heads * (2 if is_rotary else 1)
    if width is not None and width % unit:
        why = ", as rotary heads have an even width" if width % num_heads == 0 else ""
        raise ConfigurationError(
            f"model.width must be a multiple of {unit} for model.num_heads={num_heads}{why}, got {width}. Did you mean "
            f"{-(-width // unit) * unit}?"
        )


def check_layers(name: str, layers: Sequence[int], num_layers: int) -> None:
    """Raise ConfigurationError unless model.<name>=layers are some of the layers from 0, each once."""
    valid = sorted({layer for layer in layers if 0 <= layer < num_layers})
    if len(valid) < len(layers):
        raise ConfigurationError(
            f"model.{name} must be different layers from 0 to {num_layers - 1}, got {list(layers)}. Did you mean "
            f"'model.{name}={valid}'?"
        )


def check_gate(name: str, gate_width: int, width: int) -> None:
    """Raise ConfigurationError for a gate over no dimension, or over more than there are."""
    if not 1 <= gate_width <= width:
        nearest = 1 if gate_width < 1 else width
        raise ConfigurationError(
            f"model.{name} must be from 1 to model.width={width}, got {gate_width}. Did you mean {nearest}?"
        )


def check_context(num_tokens: int, max_context_tokens: int) -> None:
    """Raise ConfigurationError for a sequence longer than the model was built for."""
    if num_tokens > max_context_tokens:
        raise ConfigurationError(
            f"batch.context_tokens must be at most model.max_context_tokens={max_context_tokens}, got {num_tokens}."
        )
