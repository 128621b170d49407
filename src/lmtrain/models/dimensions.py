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
            raise ConfigurationError(f"model.{name}={value} is below 1; each dimension of a model is at least 1.")


def check_not_negative(**settings: int | float | None) -> None:
    """Raise ConfigurationError for the first of model.<name>=value below 0 or not finite; None is skipped."""
    for name, value in settings.items():
        if value is not None and not 0 <= value < math.inf:
            rule = "is below 0" if value < 0 else "is not a finite number"
            raise ConfigurationError(f"model.{name}={value} {rule}; nearest valid: 0.")


def check_above_zero(*, nearest: str, **settings: int | float | None) -> None:
    """Raise ConfigurationError for the first model.<name>=value that is not finite and above 0; None is skipped."""
    for name, value in settings.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigurationError(
                f"model.{name.replace('__', '.')}={value} is not above 0 and finite; nearest valid: {nearest}."
            )


def check_heads(*, width: int | None, num_heads: int, num_kv_heads: int = 1, is_rotary: bool = True) -> None:
    """Raise ConfigurationError for indivisible heads; a width of None has no share in a head's (model.head_width has).

    Rotary heads have an even width. The suggested values keep all of these rules.
    """
    unit = 2 if is_rotary else 1
    fits = width is None or width % (unit * num_heads) == 0
    if num_heads % num_kv_heads:
        own = _around(num_kv_heads, _divisors(num_heads)) if fits else []
        heads = _heads_around(num_heads, width=width, num_kv_heads=num_kv_heads, unit=unit)
        raise ConfigurationError(
            f"model.num_heads={num_heads} is not a multiple of model.num_kv_heads={num_kv_heads}"
            f"{_nearest(num_kv_heads=own, num_heads=heads)}."
        )
    if width is not None and not fits:
        rule = f"is not a multiple of model.num_heads={num_heads}"
        if width % num_heads == 0:
            rule = (
                f"over model.num_heads={num_heads} gives heads of {width // num_heads}, not even, as rotary pairs are"
            )
        heads = _heads_around(num_heads, width=width, num_kv_heads=num_kv_heads, unit=unit)
        widths = _multiples_around(width, unit * num_heads)
        raise ConfigurationError(f"model.width={width} {rule}{_nearest(width=widths, num_heads=heads)}.")


def _heads_around(num_heads: int, *, width: int | None, num_kv_heads: int, unit: int) -> list[int]:
    """Return the nearest numbers of heads that divide a width into heads of a multiple of `unit`."""
    if width is None:
        return _multiples_around(num_heads, num_kv_heads)
    divisors = _divisors(width // unit) if width % unit == 0 else []
    return _around(num_heads, [number for number in divisors if number % num_kv_heads == 0])


def _multiples_around(value: int, of: int) -> list[int]:
    below = value // of * of
    return [number for number in (below, below + of) if number]


def _around(value: int, candidates: Sequence[int]) -> list[int]:
    """Return the nearest candidate below a value and that above; two of one side where the other has none."""
    below = sorted(number for number in {*candidates} if number < value)
    above = sorted(number for number in {*candidates} if number > value)
    return [below[-1], above[0]] if below and above else [*below[-2:], *above[:2]]


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return [*small, *(number // divisor for divisor in small)]


def _nearest(**values: Sequence[int]) -> str:
    """Write the values to type by their name."""
    words = [f"model.{name}={' or '.join(map(str, numbers))}" for name, numbers in values.items() if numbers]
    return f"; nearest valid: {', or '.join(words)}" if words else ""


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
