"""Choose the next token from logits, one text at a time, independently of all others.

B texts, V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lmtrain.inference.sampling_settings import Sampling


def choose(
    logits: Float[Tensor, " V"],
    sampling: Sampling,
    *,
    prompt: Sequence[int],
    new: Sequence[int],
    draw: float,
    largest: int | None = None,
) -> int:
    """Return the next token of a text, its last part `new` written here; `draw` in [0, 1) decides among the kept ones.

    `largest` is the token of the largest logit, None where it is not known yet.
    Raises: ConfigurationError for a bias of an unknown token.
    """
    if largest is not None and sampling.is_plainly_greedy:
        return largest
    if not sampling.is_plainly_greedy:
        logits = _with_penalties(logits.float(), sampling, prompt, new)
    if sampling.temperature == 0:
        return int(logits.argmax())
    tokens, probabilities = _kept(logits, sampling)
    reached = probabilities.cumsum(0)
    place = torch.searchsorted(reached, draw * reached[-1], right=True).clamp(max=len(reached) - 1)
    return int(place if tokens is None else tokens[place])


def likeliest_tokens(logits: Float[Tensor, "B V"]) -> list[int]:
    """Return the token of each row's largest logit."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return logits.numpy().argmax(axis=-1).tolist()  # 1.5 us of 4,096; torch's max 7, its argmax more
    return logits.argmax(dim=-1).tolist()


def likeliest(logits: Float[Tensor, " V"], token: int, *, num: int) -> tuple[float, list[tuple[int, float]]]:
    """Return the log-probability (nats) of a token, and the `num` likeliest tokens with theirs, before any setting."""
    scores = logits.float().log_softmax(dim=-1)
    values, tokens = scores.topk(min(num, len(scores)))
    return float(scores[token]), list(zip(tokens.tolist(), values.tolist(), strict=True))


def _with_penalties(
    logits: Float[Tensor, " V"], sampling: Sampling, prompt: Sequence[int], new: Sequence[int]
) -> Float[Tensor, " V"]:
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted({*prompt, *new}), device=logits.device)
        score = logits[seen]
        factor = sampling.repetition_penalty
        logits = logits.index_copy(0, seen, torch.where(score > 0, score / factor, score * factor))
    if new and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = Counter(new)
        less = [sampling.presence_penalty + sampling.frequency_penalty * count for count in counts.values()]
        logits = _added(logits, list(counts), [-each for each in less])
    if sampling.logit_bias:
        logits = _added(logits, list(sampling.logit_bias), list(sampling.logit_bias.values()))
    return logits


def _added(logits: Float[Tensor, " V"], tokens: Sequence[int], values: Sequence[float]) -> Float[Tensor, " V"]:
    index = torch.tensor(tokens, device=logits.device)
    return logits.index_add(0, index, torch.tensor(values, dtype=logits.dtype, device=logits.device))


def _kept(logits: Float[Tensor, " V"], sampling: Sampling) -> tuple[Tensor | None, Tensor]:
    """Return the tokens to draw from and their weights in float64, likeliest first; None for all in their own order."""
    tokens = None
    if sampling.top_k is not None and sampling.top_k < len(logits):
        logits, tokens = logits.topk(sampling.top_k)
    elif sampling.top_p < 1:
        logits, tokens = logits.sort(descending=True)
    weights = ((logits.double() - logits.max()) / sampling.temperature).softmax(dim=-1)
    kept = weights >= sampling.min_p * weights.max()
    if sampling.top_p < 1:
        kept = kept & (weights.cumsum(0) - weights < sampling.top_p)
    return tokens, weights * kept
