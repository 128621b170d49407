"""The depth dial of nano: width, heads and the number of parameters multiplying every token."""

from typing import Final

WIDTH_PER_LAYER: Final = 64
HEAD_WIDTH: Final = 128
VALUE_GATE_WIDTH: Final = 12  # dimensions of a token behind the gate of its value embeddings


def nano_width(depth: int) -> int:
    """Return the width of a depth: 64 a layer, rounded up to whole heads of 128."""
    return -(-depth * WIDTH_PER_LAYER // HEAD_WIDTH) * HEAD_WIDTH


def value_embedding_layers(depth: int) -> range:
    """Return the layers with value embeddings: every second one, up to the last."""
    return range((depth - 1) % 2, depth, 2)


def num_scaling_parameters(depth: int, *, vocab_size: int) -> int:
    """Count the parameters multiplying every token: the matrices of attention and feed-forward, the gates, the head.

    A layer has 4 width x width of attention and 8 of its feed-forward.
    """
    width = nano_width(depth)
    num_gates = len(value_embedding_layers(depth)) * VALUE_GATE_WIDTH * (width // HEAD_WIDTH)
    return depth * 12 * width**2 + num_gates + vocab_size * width
