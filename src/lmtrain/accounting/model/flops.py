"""FLOPs of training, forward and backward, by three named conventions.

PaLM: arXiv 2204.02311 appendix B (attention counted in full). Causal: the same, but of attention only the part the mask
leaves, since a causal kernel skips the rest: about half of the context, and nearly all of a short window. 6N: six times
all parameters active for a token, arXiv 2001.08361 section 2.1. Recomputation counts in none of them: utilization by
them is of the model's FLOPs (MFU); with recomputation it is the hardware's (HFU).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape


@dataclass(frozen=True)
class FlopsPerToken:
    """Training FLOPs of one token, by convention."""

    palm: int
    causal: int
    six_n: int


def flops_per_token(
    shape: ModelShape, context_tokens: int, *, documents: Mapping[int, float] | None = None
) -> FlopsPerToken:
    """Count the FLOPs of one trained token in sequences of `context_tokens`.

    `documents` counts separate documents by length; None where every token may see the whole context.
    """
    matmuls = product_flops(shape)
    windows = {layer.window_tokens for layer in shape.attention}
    seen = {window: seen_tokens(context_tokens, window_tokens=window, documents=documents) for window in windows}
    causal = {window: causal_tokens(context_tokens, window_tokens=window, documents=documents) for window in windows}
    return FlopsPerToken(
        palm=matmuls + round(sum(_attention_flops(layer, seen[layer.window_tokens]) for layer in shape.attention)),
        causal=matmuls + round(sum(_attention_flops(layer, causal[layer.window_tokens]) for layer in shape.attention)),
        six_n=6 * shape.num_active_parameters,
    )


def product_flops(shape: ModelShape) -> int:
    """Count the FLOPs of a token's products with weights: three, two where a weight is frozen and has no gradient."""
    return 6 * shape.num_matmul_parameters - 2 * shape.num_frozen_matmul_parameters


def state_flops(shape: ModelShape) -> int:
    """Count the FLOPs of a token in layers with a state of fixed size, in place of attention."""
    return 3 * sum(layer.state_flops or 0 for layer in shape.attention)


def seen_token_flops(shape: ModelShape) -> dict[int | None, float]:
    """Return a token's FLOPs of attention to each one that it sees, by window, without layers of a state."""
    found: dict[int | None, float] = {}
    for layer in shape.attention:
        if layer.state_flops is None:
            found[layer.window_tokens] = found.get(layer.window_tokens, 0.0) + _attention_flops(layer, 1.0)
    return found


def mask_flops(shape: ModelShape, context_tokens: int, *, documents: Mapping[int, float] | None = None) -> float:
    """Count the FLOPs of a token's attention to the tokens that it sees, a mean over those of `documents`."""
    return sum(
        flops * causal_tokens(context_tokens, window_tokens=window, documents=documents)
        for window, flops in seen_token_flops(shape).items()
    )


def trained_flops(shape: ModelShape, num_tokens: int, context_tokens: int, *, attention_flops: float = 0.0) -> float:
    """Count the FLOPs of real tokens; `attention_flops` were counted by their documents, 0: each row is one."""
    attention = attention_flops or num_tokens * mask_flops(shape, context_tokens)
    return num_tokens * (product_flops(shape) + state_flops(shape)) + attention


def block_forward_flops(shape: ModelShape, *, num_block_parameters: int, seen: float) -> int:
    """Return the forward pass's FLOPs of all blocks for one token, spent again by recomputation.

    `num_block_parameters` are those of the blocks' matrices active for a token, `seen` the tokens its attention
    goes over, where no window is shorter.
    """
    attention = sum(_attention_flops(layer, _most(round(seen), layer.window_tokens)) for layer in shape.attention)
    return 2 * num_block_parameters + round(attention / 3)


def seen_tokens(
    context_tokens: int, *, window_tokens: int | None = None, documents: Mapping[int, float] | None = None
) -> int:
    """Return the mean number of tokens in a token's attention, by PaLM's count, without causality.

    That is the context, a window of it, or the token's own document; documents beyond the context are cut into such.
    """
    return round(_mean_over_tokens(context_tokens, documents, lambda length: length * _most(length, window_tokens)))


def causal_tokens(
    context_tokens: int, *, window_tokens: int | None = None, documents: Mapping[int, float] | None = None
) -> float:
    """Return how many tokens a token sees on average, itself included: w - w (w - 1) / (2 T) of a window w in T tokens.

    Its first w tokens see 1 to w; for the whole context the mean is (T + 1) / 2.
    """

    def seen_in(length: int) -> int:
        most = _most(length, window_tokens)
        return length * most - most * (most - 1) // 2

    return _mean_over_tokens(context_tokens, documents, seen_in)


def _most(length: int, window_tokens: int | None) -> int:
    return length if window_tokens is None else min(window_tokens, length)


def _mean_over_tokens(
    context_tokens: int, documents: Mapping[int, float] | None, seen_in: Callable[[int], int]
) -> float:
    """Return the mean over tokens of `seen_in`, a sum over a sequence of a length; None is one of a whole context."""
    total = over = 0.0
    for length, count in (documents or {}).items():
        whole, rest = divmod(length, context_tokens)
        total += count * length
        over += count * (whole * seen_in(context_tokens) + seen_in(rest))
    return over / total if total else seen_in(context_tokens) / context_tokens


def matmul_flops(num_rows: int, num_inner: int, num_columns: int) -> int:
    """Count a matrix product [rows, inner] x [inner, columns]: a multiplication and an addition per term."""
    return 2 * num_rows * num_inner * num_columns


def _attention_flops(layer: AttentionShape, seen: float) -> float:
    """Two products (scores, values) of 2 FLOPs a term, three times over for forward and backward."""
    if layer.state_flops is not None:
        return 3 * layer.state_flops
    both = layer.head_width + (layer.head_width if layer.value_width is None else layer.value_width)
    return 6 * layer.num_heads * both * seen
