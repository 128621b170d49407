"""The depth dial of nano: its sizes, and batch, learning rate and decay from the best at depth 12.

The laws: batch by tokens^0.383 (Power Lines, arXiv 2505.13738), learning rate by the square root of the batch (arXiv
2205.10287) and, for AdamW's tables and head, of 1 / width; decay such that its timescale in tokens stays a share of the
run (arXiv 2405.13698). The reference points are nanochat's, measured at depth 12 and for a model trained as long per
parameter: tokens grow with the scaling parameters, the matrices and the head, multiplied with every token.
"""

import math
from dataclasses import dataclass
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


REFERENCE_DEPTH: Final = 12
REFERENCE_VOCAB_SIZE: Final = 32_768
REFERENCE_WIDTH: Final = nano_width(REFERENCE_DEPTH)
REFERENCE_SCALING_PARAMETERS: Final = num_scaling_parameters(REFERENCE_DEPTH, vocab_size=REFERENCE_VOCAB_SIZE)
REFERENCE_TOKENS_PER_STEP: Final = 2**19
BATCH_EXPONENT: Final = 0.383


@dataclass(frozen=True, kw_only=True)
class DepthScaling:
    """A step's tokens, and the factors on the best settings of depth 12.

    `lr_factor` goes to every group, `table_lr_factor` besides to embeddings and head, AdamW's groups.
    """

    tokens_per_step: int
    lr_factor: float
    table_lr_factor: float
    weight_decay_factor: float


def depth_scaling(depth: int, *, vocab_size: int, tokens_per_step: int | None = None) -> DepthScaling:
    """Scale the settings of depth 12 to a depth; `tokens_per_step` None takes the law's batch."""
    growth = num_scaling_parameters(depth, vocab_size=vocab_size) / REFERENCE_SCALING_PARAMETERS
    if tokens_per_step is None:
        tokens_per_step = 1 << round(math.log2(REFERENCE_TOKENS_PER_STEP * growth**BATCH_EXPONENT))
    lr_factor = (tokens_per_step / REFERENCE_TOKENS_PER_STEP) ** 0.5
    return DepthScaling(
        tokens_per_step=tokens_per_step,
        lr_factor=lr_factor,
        table_lr_factor=(nano_width(depth) / REFERENCE_WIDTH) ** -0.5,
        weight_decay_factor=lr_factor / growth,
    )
