"""Choose the next token from logits: greedily, or at a temperature among the likeliest.

B batch, V vocabulary.
"""

import torch
from torch import Tensor

from lmtrain.errors import ConfigurationError


def sample(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw one token a row: [B, V] -> int64 [B]; temperature 0 takes the likeliest, `top_k` None keeps all.

    Raises: ConfigurationError for a negative temperature or a top_k below 1.
    """
    if not temperature >= 0:
        raise ConfigurationError(f"temperature={temperature} is below 0; nearest valid: 0, which is greedy.")
    if top_k is not None and top_k < 1:
        raise ConfigurationError(f"top_k={top_k} is below 1; nearest valid: 1, which is greedy.")
    if temperature == 0:
        return logits.argmax(dim=-1)
    kept = logits.float() if top_k is None else keep_top_k(logits.float(), top_k)
    probabilities = (kept / temperature).softmax(dim=-1)
    return torch.multinomial(probabilities, num_samples=1, generator=generator).squeeze(-1)


def keep_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Set all but the `top_k` largest logits of each row to minus infinity: [B, V] -> [B, V]."""
    values, indices = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
    return torch.full_like(logits, float("-inf")).scatter(-1, indices, values)
