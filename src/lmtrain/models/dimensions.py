"""Refuse impossible dimensions, with the nearest possible one."""

import math
from collections.abc import Sequence
from typing import Final

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
        if value < 1:
            raise ConfigurationError(f"model.{name}={value} is below 1; nearest valid: 1.")


def check_not_negative(**settings: int | float | None) -> None:
    """Raise ConfigurationError for the first of model.<name>=value below 0 or not finite; None is no value."""
    for name, value in settings.items():
        if value is not None and not 0 <= value < math.inf:
            rule = "is below 0" if value < 0 else "is not a finite number"
            raise ConfigurationError(f"model.{name}={value} {rule}; nearest valid: 0.")


def check_above_zero(*, nearest: str, **settings: int | float | None) -> None:
    """Raise ConfigurationError for the first of model.<name>=value that is no finite number above 0; None is none."""
    for name, value in settings.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigurationError(
                f"model.{name.replace('__', '.')}={value} is not above 0 and finite; nearest valid: {nearest}."
            )


def check_multiple(name: str, value: int, of_name: str, of: int) -> None:
    """Raise ConfigurationError unless model.<name>=value is a multiple of model.<of_name>=of."""
    if value % of:
        below, above = value // of * of, (value // of + 1) * of
        nearest = f"{below} or {above}" if below else f"{above}"
        raise ConfigurationError(
            f"model.{name}={value} is not a multiple of model.{of_name}={of}; nearest valid: {nearest}."
        )


def check_layers(name: str, layers: Sequence[int], num_layers: int) -> None:
    """Raise ConfigurationError unless model.<name>=layers are some of the layers from 0, each once."""
    for layer in layers:
        if not 0 <= layer < num_layers:
            there = ", ".join(str(each) for each in layers if 0 <= each < num_layers)
            word = f"model.{name}=[{there}]"
            raise ConfigurationError(
                f"model.{name}={list(layers)} names layer {layer} of model.num_layers={num_layers}; layers are 0 to "
                f"{num_layers - 1}, nearest valid: '{word}'.",
                lacking=[word],
            )
        if layers.count(layer) > 1:
            nearest = sorted({*layers})
            raise ConfigurationError(
                f"model.{name}={list(layers)} names layer {layer} twice; nearest valid: {nearest}."
            )


def check_gate(name: str, gate_width: int, width: int) -> None:
    """Raise ConfigurationError for a gate over no dimension, or over more than there are."""
    if not 1 <= gate_width <= width:
        nearest = 1 if gate_width < 1 else width
        raise ConfigurationError(
            f"model.{name}={gate_width} is not 1 to model.width={width} dimensions; nearest valid: {nearest}."
        )


def check_context(num_tokens: int, max_context_tokens: int) -> None:
    """Raise ConfigurationError for a sequence longer than the model was built for."""
    if num_tokens > max_context_tokens:
        raise ConfigurationError(
            f"batch.context_tokens={num_tokens} is over model.max_context_tokens={max_context_tokens}; "
            f"nearest valid: {max_context_tokens}."
        )
