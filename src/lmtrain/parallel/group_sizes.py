"""A model's sizes against the ranks that share its layers out: parts of every matrix, or shares of the experts.

The same for a built model and, without torch, for a plan's config; `sizes` are by their settings' names. Both refuse
the same models, so that a plan chooses nothing that its run refuses.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from lmtrain.errors import ConfigurationError

VOCABULARY: Final = "vocab_size"
HEADS: Final = ("num_heads", "num_kv_heads")
SHARED_WIDTH: Final = "experts.shared_width"
UNSLICED: Final = ("num_future_tokens", "recurrent_layers")  # settings whose layers no context group shares
OF_STATES: Final = ("recurrent_layers.num_key_heads", "recurrent_layers.num_groups")
SIZES: Final = (VOCABULARY, *HEADS, "feed_forward_width", SHARED_WIDTH, "experts.dense_width", *OF_STATES, "width")


def require_parts(num_ranks: int, sizes: Mapping[str, int]) -> None:
    """Refuse a model without an equal part of each layer, and a row of its vocabulary, for each rank of a group."""
    vocab_size = sizes.get(VOCABULARY)
    if vocab_size is not None and -(-vocab_size // num_ranks) * (num_ranks - 1) >= vocab_size:
        raise _indivisible(num_ranks, VOCABULARY, vocab_size)
    for name in SIZES[1:]:
        if sizes.get(name, 0) % num_ranks:
            raise _indivisible(num_ranks, name, sizes[name])


def no_cuts(name: str) -> ConfigurationError:
    """Return the refusal of a setting whose layers a context group cannot share."""
    return ConfigurationError(f"model.{name} cannot be cut over a context group; use strategy=fsdp.")


def require_expert_shares(num_ranks: int, num_experts: int | None) -> None:
    """Refuse a model without an equal share of each layer's experts for each rank of a group; None is without any."""
    if num_experts is None and num_ranks > 1:
        raise ConfigurationError(
            f"strategy.expert_size={num_ranks} needs model.experts. Did you mean strategy.expert_size=1?"
        )
    if num_experts is not None and num_experts % num_ranks:
        raise ConfigurationError(
            f"strategy.expert_size={num_ranks} does not divide model.experts.num_experts={num_experts}. Did you mean "
            f"{_nearest(num_ranks, num_experts)}?"
        )


def require_expert_sides(
    num_ranks: int, num_shards: int, sides: Mapping[str, Sequence[int]], *, uncut: int | None = None
) -> None:
    """Refuse experts with a matrix that `num_shards` ranks with the same ones cannot cut; `sides` are by its name.

    `uncut` is the only side of matrices that a tensor group does not cut.
    """
    of_matrices = {} if uncut is None else dict.fromkeys(("gate_up", "down"), (uncut,))
    for name, lengths in {**sides, **of_matrices}.items():
        if not any(length % num_shards == 0 for length in lengths):
            raise ConfigurationError(
                f"strategy.expert_size={num_ranks}: each expert's {name} must divide over {num_shards} ranks, got "
                f"{' x '.join(map(str, lengths))}. Did you mean strategy.expert_size=1?"
            )


def require_one_future_token(num_future_tokens: int) -> None:
    """Refuse modules of future tokens, which no stage of a pipeline has."""
    if num_future_tokens:
        raise ConfigurationError(
            f"model.num_future_tokens: must be 0 with pipeline stages, got {num_future_tokens}. "
            "Did you mean strategy=fsdp?"
        )


def _indivisible(num_ranks: int, name: str, number: int) -> ConfigurationError:
    return ConfigurationError(
        f"strategy.tensor_size={num_ranks} does not divide model.{name}={number} into parts. Did you mean "
        f"{_nearest(num_ranks, number)}?"
    )


def _nearest(num_ranks: int, number: int) -> int:
    """Return the largest smaller group that divides a number, and the ranks that the asked one divides."""
    return max(size for size in range(1, num_ranks) if number % size == num_ranks % size == 0)
