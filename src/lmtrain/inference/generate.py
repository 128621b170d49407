"""Continue a text token by token, with the whole window read again for each.

B batch, T tokens.
"""

import torch
from torch import Tensor

from lmtrain.errors import ConfigurationError
from lmtrain.inference.sampling import sample
from lmtrain.models.base import LanguageModel


def generate(
    model: LanguageModel,
    tokens: Tensor,
    *,
    num_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Append sampled tokens to prompts: int64 [B, T] -> [B, T + num_new_tokens]; the model's mode is given back.

    The model sees the last max_context_tokens. `generator` lives where the tokens do.
    Raises: ConfigurationError for an empty prompt.
    """
    num_prompt_tokens = tokens.shape[1]
    if num_prompt_tokens == 0:
        raise ConfigurationError("prompt='' has no tokens; nearest valid: the end-of-text token alone.")
    num_tokens = num_prompt_tokens + num_new_tokens
    text = torch.nn.functional.pad(tokens, (0, num_new_tokens))
    window_tokens = min(num_tokens, model.max_context_tokens)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for position in range(num_prompt_tokens, num_tokens):
                # Always a full window, whose end is not written yet: one shape to compile, and a causal model
                # cannot see it.
                start = max(0, position - window_tokens)
                logits = model(text[:, start : start + window_tokens])[:, position - start - 1]  # [B, V]
                text[:, position] = sample(logits, temperature=temperature, top_k=top_k, generator=generator)
    finally:
        model.train(was_training)
    return text
