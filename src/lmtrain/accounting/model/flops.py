"""FLOPs of training, forward and backward, by three conventions that are always named.

PaLM: arXiv 2204.02311 appendix B (attention counted in full). Causal: the same with attention halved, since a causal
kernel skips what the mask hides. 6N: six times all parameters that a token meets, arXiv 2001.08361 section 2.1.
Recompute never counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape


@dataclass(frozen=True)
class FlopsPerToken:
    """FLOPs that training spends on one token, by convention."""

    palm: int
    causal: int
    six_n: int


def flops_per_token(
    shape: ModelShape, context_tokens: int, *, documents: Mapping[int, float] | None = None
) -> FlopsPerToken:
    """Count the FLOPs of one trained token in sequences of `context_tokens`.

    `documents` counts by length those that do not see one another; None where every token may see the whole context.
    """
    matmuls = 6 * shape.num_matmul_parameters
    windows = {layer.window_tokens for layer in shape.attention}
    seen = {window: seen_tokens(context_tokens, window_tokens=window, documents=documents) for window in windows}
    attention = sum(_attention_flops(layer, seen[layer.window_tokens]) for layer in shape.attention)
    return FlopsPerToken(
        palm=matmuls + attention, causal=matmuls + attention // 2, six_n=6 * shape.num_active_parameters
    )


def seen_tokens(
    context_tokens: int, *, window_tokens: int | None = None, documents: Mapping[int, float] | None = None
) -> int:
    """Return how many tokens attention goes over for a token on average, by PaLM's count, which ignores causality.

    That is the context, a window of it, or the token's own document; documents beyond the context are cut into such.
    """
    most = context_tokens if window_tokens is None else min(window_tokens, context_tokens)
    if not documents:
        return most
    total = over = 0
    for length, count in documents.items():
        whole, rest = divmod(length, context_tokens)
        total += count * length
        over += count * (whole * context_tokens * most + rest * min(rest, most))
    return round(over / total) if total else most


def matmul_flops(num_rows: int, num_inner: int, num_columns: int) -> int:
    """Count a matrix product [rows, inner] x [inner, columns]: a multiplication and an addition per term."""
    return 2 * num_rows * num_inner * num_columns


def _attention_flops(layer: AttentionShape, seen: int) -> int:
    """Two products (scores, values) of 2 FLOPs a term, three times over for forward and backward."""
    return 12 * layer.num_heads * layer.head_width * seen
