"""How a nano of another depth wants to be trained: batch, learning rate and decay from what was best at depth 12.

The laws: batch by tokens^0.383 (Power Lines, arXiv 2505.13738), learning rate by the square root of the batch (arXiv
2205.10287) and of 1 / width, decay so that its timescale in tokens stays a share of the run (arXiv 2405.13698). The
reference points are nanochat's, measured at depth 12. Scaling parameters are those that multiply every token: the
matrices and the head.
"""

from dataclasses import dataclass
from typing import Final

REFERENCE_SCALING_PARAMETERS: Final = 110_100_912  # nano of depth 12, 32,768 tokens of vocabulary
REFERENCE_WIDTH: Final = 768
REFERENCE_TOKENS_PER_STEP: Final = 2**19
BATCH_EXPONENT: Final = 0.383


@dataclass(frozen=True, kw_only=True)
class DepthScaling:
    """A run's tokens, and what multiplies the settings that are best at depth 12 trained as long per parameter.

    `width_lr_factor` goes to embeddings, head and vectors, `lr_factor` to every group, `weight_decay_factor` to decay.
    """

    train_tokens: int
    tokens_per_step: int
    lr_factor: float
    width_lr_factor: float
    weight_decay_factor: float


def depth_scaling(
    num_scaling_parameters: int, *, width: int, tokens_per_parameter: float, tokens_per_step: int | None = None
) -> DepthScaling:
    """Scale the settings of depth 12 to a model; `tokens_per_step` None takes the batch that the law predicts."""
    train_tokens = round(tokens_per_parameter * num_scaling_parameters)
    reference_tokens = round(tokens_per_parameter * REFERENCE_SCALING_PARAMETERS)
    if tokens_per_step is None:
        tokens_per_step = best_tokens_per_step(train_tokens, reference_tokens=reference_tokens)
    return DepthScaling(
        train_tokens=train_tokens,
        tokens_per_step=tokens_per_step,
        lr_factor=batch_lr_factor(tokens_per_step),
        width_lr_factor=width_lr_factor(width),
        weight_decay_factor=weight_decay_factor(
            tokens_per_step, train_tokens=train_tokens, reference_tokens=reference_tokens
        ),
    )


def best_tokens_per_step(train_tokens: int, *, reference_tokens: int) -> int:
    """Return the batch for a run's tokens, as a power of two: 2^19 at the reference, growing by tokens^0.383."""
    best = REFERENCE_TOKENS_PER_STEP * (train_tokens / reference_tokens) ** BATCH_EXPONENT
    return nearest_power_of_two(best)


def batch_lr_factor(tokens_per_step: int) -> float:
    """Return what a batch multiplies every learning rate by: the square root of its ratio to 2^19."""
    return (tokens_per_step / REFERENCE_TOKENS_PER_STEP) ** 0.5


def width_lr_factor(width: int) -> float:
    """Return what a width multiplies AdamW's learning rates by: the inverse square root of its ratio to 768."""
    return (width / REFERENCE_WIDTH) ** -0.5


def weight_decay_factor(tokens_per_step: int, *, train_tokens: int, reference_tokens: int) -> float:
    """Return what multiplies weight decay, so that what it forgets over a run stays the same."""
    return batch_lr_factor(tokens_per_step) * reference_tokens / train_tokens


def nearest_power_of_two(amount: float) -> int:
    """Return the power of two whose logarithm is nearest, 1 at the least."""
    assert amount > 0
    exponent = max(0, int(amount).bit_length() - 1)
    return 2 ** (exponent + (amount > 2 ** (exponent + 0.5)))
