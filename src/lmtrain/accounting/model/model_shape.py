"""A model in numbers: its parameters by kind, and the shape of each layer's attention."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionShape:
    """The attention of one layer; `window_tokens` None is the whole context.

    A layer with a state of fixed size has `state_flops` a token instead, forward, at any context. `head_width` is of
    queries and keys, and of values where they have no `value_width` of their own.
    """

    num_heads: int
    head_width: int
    window_tokens: int | None = None
    value_width: int | None = None
    state_flops: int | None = None


@dataclass(frozen=True)
class ModelShape:
    """Parameter counts, and one AttentionShape per layer.

    `num_matmul_parameters` multiply every token: the head counts, tied or not, a lookup does not.
    `num_frozen_parameters` have no gradient of their own, those of matmuls among them.
    `num_active_parameters` are active for one token: all of them, unless the model is a mixture of experts.
    `width` are the numbers of a token in the residual stream, fewer than those of all heads in Qwen3.
    `layer_vectors` is how many vectors of that width a layer keeps of each token on every rank of a tensor group: the
    inputs of attention and of the feed-forward, and each chosen expert's input and output. `num_streams` of that width
    go from a layer to the next, where a pipeline cuts between them.
    """

    num_parameters: int
    num_embedding_parameters: int
    num_matmul_parameters: int
    num_active_parameters: int
    attention: tuple[AttentionShape, ...]
    num_frozen_parameters: int = 0
    num_frozen_matmul_parameters: int = 0
    width: int = 0
    layer_vectors: float = 2.0
    num_streams: int = 1

    @property
    def num_chosen_experts(self) -> float:
        """Return how many experts a token has in all layers together."""
        return (self.layer_vectors - 2) / 2 * len(self.attention)
