"""FLOPs of training, forward and backward, by three conventions that are always named.

PaLM: arXiv 2204.02311 appendix B (attention counted in full). Causal: the same with attention halved, since a causal
kernel skips what the mask hides. 6N: six times all parameters that a token meets, arXiv 2001.08361 section 2.1.
Recompute never counts.
"""

from dataclasses import dataclass

from lmtrain.accounting.model_shape import AttentionShape, ModelShape


@dataclass(frozen=True)
class FlopsPerToken:
    """FLOPs that training spends on one token, by convention."""

    palm: int
    causal: int
    six_n: int


def flops_per_token(shape: ModelShape, context_tokens: int) -> FlopsPerToken:
    """Count the FLOPs of one trained token in sequences of `context_tokens`."""
    matmuls = 6 * shape.num_matmul_parameters
    attention = sum(_attention_flops(layer, context_tokens) for layer in shape.attention)
    return FlopsPerToken(
        palm=matmuls + attention, causal=matmuls + attention // 2, six_n=6 * shape.num_active_parameters
    )


def matmul_flops(num_rows: int, num_inner: int, num_columns: int) -> int:
    """Count a matrix product [rows, inner] x [inner, columns]: a multiplication and an addition per term."""
    return 2 * num_rows * num_inner * num_columns


def _attention_flops(layer: AttentionShape, context_tokens: int) -> int:
    """Two products (scores, values) of 2 FLOPs a term, three times over for forward and backward."""
    seen = context_tokens if layer.window_tokens is None else min(layer.window_tokens, context_tokens)
    return 12 * layer.num_heads * layer.head_width * seen
