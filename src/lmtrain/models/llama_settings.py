"""Parts of a Llama by its settings; contradictions and settings without an effect are refused."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal

from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.models.dimensions import check_gate, check_layers
from lmtrain.models.embeddings import GatedSmear, Smear
from lmtrain.models.feed_forward import Activation, SquaredReLU, SwiGLU
from lmtrain.models.feed_forward import build_feed_forward as build_dense
from lmtrain.models.mixture_of_experts import Experts, MixtureOfExperts
from lmtrain.models.residual_stream import SkipStart

WINDOW, WHOLE = "S", "L"
ROTATED, UNROTATED = "R", "N"
BiasPlace = Literal["qkv", "output", "feed_forward"]
NormPlace = Literal["before", "after", "both"]
BIAS_PLACES: Final[tuple[BiasPlace, ...]] = ("qkv", "output", "feed_forward")
NORM_PLACES: Final[tuple[NormPlace, ...]] = ("before", "after", "both")


def layer_windows(num_layers: int, *, window_tokens: int | None, pattern: str | None) -> tuple[int | None, ...]:
    """Return how many tokens each layer sees, itself included; None is all.

    `pattern` spells layers, over and over: S sees `window_tokens`, L the whole context. None gives all the window.
    """
    require_count("model.window_tokens", window_tokens)
    if pattern is None:
        return (window_tokens,) * num_layers
    check_pattern(pattern)
    require(window_tokens is not None, "window_tokens", window_pattern=pattern)
    return tuple(window_tokens if pattern[i % len(pattern)] == WINDOW else None for i in range(num_layers))


def check_pattern(pattern: str) -> None:
    """Raise ConfigurationError unless a pattern is one or more letters S and L."""
    check_letters("window_pattern", pattern, {WINDOW: "window", WHOLE: "whole context"}, usual="SSSL")


def rotated_layers(num_layers: int, pattern: str | None) -> tuple[bool, ...]:
    """Return whether each layer rotates queries and keys; `pattern` spells layers, over and over, None rotates all."""
    if pattern is None:
        return (True,) * num_layers
    check_letters("rotary_pattern", pattern, {ROTATED: "rotates", UNROTATED: "does not"}, usual="RRRN")
    return tuple(pattern[i % len(pattern)] == ROTATED for i in range(num_layers))


def check_letters(name: str, pattern: str, letters: Mapping[str, str], *, usual: str) -> None:
    """Raise ConfigurationError unless a pattern is one or more of these letters, each with its meaning."""
    if not pattern or set(pattern) - set(letters):
        nearest = "".join(letter for letter in pattern.upper() if letter in letters) or usual
        known = " and ".join(f"{letter} ({meaning})" for letter, meaning in letters.items())
        raise ConfigurationError(f"model.{name} must be letters {known}, got {pattern!r}. Did you mean {nearest}?")


def check_word(name: str, word: str, known: Sequence[str]) -> None:
    """Raise ConfigurationError for model.<name> with an unknown word."""
    if word not in known:
        raise ConfigurationError(f"model.{name} must be {' or '.join(known)}, got {word}.{suggest(str(word), known)}")


FeedForward = SwiGLU | SquaredReLU | MixtureOfExperts


def layer_feed_forwards(
    num_layers: int,
    activation: Activation,
    width: int,
    feed_forward_width: int,
    *,
    experts: Experts | None,
    biases: Sequence[str] = (),
) -> list[Callable[[], FeedForward]]:
    """Return what builds each layer's feed-forward, or its mixture of experts, each as wide."""
    for place in biases:
        check_word("biases", place, BIAS_PLACES)
    has_biases = "feed_forward" in biases
    dense = partial(build_dense, activation, width, biases=has_biases)
    if experts is None:
        return [partial(dense, feed_forward_width)] * num_layers
    if has_biases:
        raise ConfigurationError("model.biases: experts have none, got feed_forward. Did you mean [qkv,output]?")
    check_layers("experts.dense_layers", experts.dense_layers, num_layers)
    if activation != "swiglu":
        raise ConfigurationError(
            f"model.activation={activation} has no effect with model.experts, which are swiglu. Did you mean swiglu?"
        )
    mixture = partial(MixtureOfExperts, width, feed_forward_width, experts=experts)
    dense_width = experts.dense_width or feed_forward_width
    return [partial(dense, dense_width) if layer in experts.dense_layers else mixture for layer in range(num_layers)]


def build_smear(width: int, *, is_on: bool, gate_width: int | None) -> Smear | GatedSmear | None:
    """Build a smear by a weight per dimension, or by a gate on the first `gate_width` dimensions; or none."""
    require(is_on, "embedding_smear=true", smear_gate_width=gate_width)
    if not is_on or gate_width is None:
        return Smear(width) if is_on else None
    check_gate("smear_gate_width", gate_width, width)
    return GatedSmear(gate_width)


def skip_starts(num_layers: int, *, is_on: bool, start: SkipStart | None) -> list[tuple[float, float]] | list[None]:
    """Return where each layer's scalars of the embedding skip start; None without a skip."""
    require(is_on, "embedding_skip=true", embedding_skip_start=start)
    return (start or SkipStart()).of_layers(num_layers) if is_on else [None] * num_layers


def require(is_there: bool, needs: str, **settings: object) -> None:  # noqa: FBT001
    """Refuse the first setting that is not None while what it needs is not there."""
    for name, value in settings.items():
        if value is not None and not is_there:
            raise _without(name, value, needs, nearest="null")


def check_values(layers: Sequence[int], num_layers: int, *, gate: int | None, init_std: float) -> None:
    """Raise ConfigurationError for value embeddings of absent layers, or for their settings without any."""
    check_layers("value_embedding_layers", layers, num_layers)
    if init_std and not layers:
        raise _without("value_embedding_init_std", init_std, "value_embedding_layers", nearest="0.0")
    if gate is not None and not layers:
        raise _without("value_gate_width", gate, "value_embedding_layers", nearest="null")


def _without(name: str, value: object, needs: str, *, nearest: str) -> ConfigurationError:
    """Return the refusal of a setting without effect for lack of another."""
    return ConfigurationError(f"model.{name}={value} has no effect without model.{needs}. Did you mean {nearest}?")
