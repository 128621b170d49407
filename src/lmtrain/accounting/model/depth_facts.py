"""Facts of a model at any number of blocks, along the line through two depths: each further block is like the last."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Final

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_facts import LinearBytes, ModelFacts
from lmtrain.accounting.model.model_shape import ModelShape

# Blocks: both beyond those run one by one, and apart by a multiple of those over which a block is weighed.
DEPTHS: Final = (12, 16)


def at_depth(few: ModelFacts, more: ModelFacts, num_blocks: int) -> ModelFacts:
    """Return the facts at `num_blocks` from those at both DEPTHS; workspace is that of any depth."""

    def count(one: int, other: int) -> int:
        return one + (other - one) * (num_blocks - DEPTHS[0]) // (DEPTHS[1] - DEPTHS[0])

    def counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
        return {name: count(value, other[name]) for name, value in one.items()}

    layers = few.shape.attention
    attention = (*layers, *layers[-1:] * (num_blocks - DEPTHS[0]))[:num_blocks]
    shape = {name: value for name, value in asdict(few.shape).items() if name != "attention"}
    deeper = {name: getattr(more.shape, name) for name in shape}
    return replace(
        few,
        shape=ModelShape(attention=attention, **counts(shape, deeper)),
        components=counts(few.components, more.components),
        parameters=TrainedParameters(**counts(asdict(few.parameters), asdict(more.parameters))),
        activations=_along(few.activations, more.activations, num_blocks),
    )


def _along(few: LinearBytes, more: LinearBytes, num_blocks: int) -> LinearBytes:
    """Return the line through the bytes of one and of two sequences, each rounded as if it were measured."""
    share = (num_blocks - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0])
    one, two = (round(few.of(n) + (more.of(n) - few.of(n)) * share) for n in (1, 2))
    return LinearBytes(fixed=one - (two - one), per_sequence=two - one)
