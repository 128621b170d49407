"""Continue a text token by token, with the whole window read again for each: a model as training left it.

Whatever shards, casts or compiles it, it sees one shape and no cache; `engine` is the fast way for a model by itself.
B batch, T tokens.
"""

import random

import torch
from torch import Tensor

from lmtrain.errors import ConfigurationError
from lmtrain.inference.sampling import choose
from lmtrain.inference.sampling_settings import Sampling
from lmtrain.models.base import LanguageModel


def generate(
    model: LanguageModel, tokens: Tensor, *, num_new_tokens: int, sampling: Sampling | None = None, seed: int = 0
) -> Tensor:
    """Append sampled tokens to prompts: int64 [B, T] -> [B, T + num_new_tokens]; the model's mode is given back.

    The model sees the last max_context_tokens. Each prompt draws numbers of its own.
    Raises: ConfigurationError for an empty prompt.
    """
    num_prompt_tokens = tokens.shape[1]
    if num_prompt_tokens == 0:
        raise ConfigurationError("prompt='' has no tokens; nearest valid: the end-of-text token alone.")
    sampling = sampling or Sampling()
    draws = [random.Random(f"{seed}/{row}") for row in range(len(tokens))]  # a text's hash seeds alike anywhere
    num_tokens = num_prompt_tokens + num_new_tokens
    text = torch.nn.functional.pad(tokens, (0, num_new_tokens))
    window_tokens = min(num_tokens, model.max_context_tokens)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for position in range(num_prompt_tokens, num_tokens):
                # Always a full window, its end not yet written: one shape to compile, and a causal model
                # cannot see it.
                start = max(0, position - window_tokens)
                logits = model(text[:, start : start + window_tokens])[:, position - start - 1]  # [B, V]
                for row, scores in enumerate(logits):
                    written: list[int] = text[row, :position].tolist()
                    prompt, new = written[:num_prompt_tokens], written[num_prompt_tokens:]
                    text[row, position] = choose(scores, sampling, prompt=prompt, new=new, draw=draws[row].random())
    finally:
        model.train(was_training)
    return text
