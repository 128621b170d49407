"""The depth dial of nanochat and picollm: one integer sets the whole shape of a Llama with the speed runs' options.

Width 64 a layer in heads of 128, squared ReLU, query-key norm without weights, every second layer with gated value
embeddings, residual scalars, a gated smear, a soft cap, sliding windows but in every fourth and the last layer:
https://github.com/karpathy/nanochat, and the modded-nanogpt speed runs where those come from.
"""

from typing import Any, Final

from lmtrain.accounting.options.parts import ScalingFacts
from lmtrain.accounting.scaling_laws.depth_scaling import (
    HEAD_WIDTH,
    VALUE_GATE_WIDTH,
    nano_width,
    value_embedding_layers,
)
from lmtrain.models.attention.base import Attention
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.dimensions import check_positive
from lmtrain.models.llama import Llama
from lmtrain.models.llama_settings import WHOLE, check_pattern
from lmtrain.models.residual_stream import SkipStart

WINDOW_MULTIPLE = 128  # tokens: the tile of attention kernels
TUNED_DEPTH = 12


def nano(
    *,
    depth: int,
    vocab_size: int,
    max_context_tokens: int,
    attention: Attention = sdpa,
    window_pattern: str = "SSSL",
    rope_base: float = 100_000.0,
    logit_soft_cap: float | None = 15.0,
) -> Llama:
    """Build the model of a depth; `window_pattern` spells layers, over and over; the last is whole.

    S layers see a quarter of the context. Raises: ConfigurationError for a depth below 1 or a letter besides S and L.
    """
    settings = nano_settings(
        depth=depth,
        vocab_size=vocab_size,
        max_context_tokens=max_context_tokens,
        window_pattern=window_pattern,
        rope_base=rope_base,
        logit_soft_cap=logit_soft_cap,
    )
    return Llama(attention=attention, **settings, embedding_skip_start=skip_start(depth))


def nano_settings(
    *,
    depth: int,
    vocab_size: int,
    max_context_tokens: int,
    window_pattern: str = "SSSL",
    rope_base: float = 100_000.0,
    logit_soft_cap: float | None = 15.0,
) -> dict[str, Any]:
    """Return a depth's settings of a Llama, all plain values."""
    check_positive(depth=depth)
    check_pattern(window_pattern)
    width = nano_width(depth)
    return {
        "width": width,
        "num_layers": depth,
        "num_heads": width // HEAD_WIDTH,
        "feed_forward_width": 4 * width,
        "vocab_size": vocab_size,
        "max_context_tokens": max_context_tokens,
        "activation": "relu_squared",
        "rope_base": rope_base,
        "window_tokens": short_window(max_context_tokens),
        "window_pattern": "".join(window_pattern[i % len(window_pattern)] for i in range(depth - 1)) + WHOLE,
        "norm_eps": 1e-6,
        "norm_weights": False,
        "qk_norm": True,
        "qk_norm_scale": 1.2,
        "logit_soft_cap": logit_soft_cap,
        "embedding_norm": True,
        "embedding_skip": True,
        "backout": True,
        "embedding_smear": True,
        "smear_gate_width": 24,
        "value_embedding_layers": list(value_embedding_layers(depth)),
        "value_gate_width": VALUE_GATE_WIDTH,
        "init_std": width**-0.5,
        "embedding_init_std": 0.8,
        "head_init_std": 0.001,
        "value_embedding_init_std": width**-0.5,
        "zero_init_outputs": True,
    }


NANO_FACTS: Final = ScalingFacts(carries_over="depth")


def skip_start(depth: int) -> SkipStart:
    """Return where residual scalars start: as tuned up to depth 12, beyond it for a stream without further growth.

    Each layer multiplies the stream by about 1.1: three times over 12 layers, but two hundred over 48.
    """
    share = min(1.0, TUNED_DEPTH / depth)
    return SkipStart(
        first_stream=1.15**share, last_stream=1.05**share, first_embedded=0.2 * share, last_embedded=0.05 * share
    )


def short_window(max_context_tokens: int) -> int:
    """Return how many tokens an S layer sees: a quarter of the context, rounded up to 128."""
    return -(-max_context_tokens // (4 * WINDOW_MULTIPLE)) * WINDOW_MULTIPLE
