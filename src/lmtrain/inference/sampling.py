"""The choice of the next token, one text at a time; `generate` writes texts with it without a cache.

B texts, T tokens, V vocabulary.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel, in_evaluation_mode

FAR: Final = 1e6  # beyond it, sums and products of logits leave fp32
BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "temperature": (0, math.inf),
    "top_k": (1, math.inf),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (1 / FAR, FAR),
    "presence_penalty": (-FAR, FAR),
    "frequency_penalty": (-FAR, FAR),
}


@final
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose; the defaults draw from the model's distribution.

    `temperature` 0 takes the likeliest. Kept are the `top_k` likeliest (None: all), of these as few as reach `top_p`
    of the probability, of these none below `min_p` times the likeliest. `repetition_penalty` divides positive logits
    of tokens anywhere in the text and multiplies negative ones (arXiv 1909.05858 section 4.1). `presence_penalty` is
    subtracted from logits of tokens written so far, `frequency_penalty` once for each time. `logit_bias` adds to
    logits by token. Raises: ConfigurationError for a value outside its bounds.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])

    def __post_init__(self) -> None:
        if self.top_p == 0:
            raise ConfigurationError("top_p: must be above 0, got 0.")
        for name, (least, most) in BOUNDS.items():
            value, is_whole = getattr(self, name), name == "top_k"
            if is_whole and self.top_k is None:
                continue
            kind: Any = Integral if is_whole else Real
            if not (isinstance(value, kind) and least <= value <= most and math.isfinite(value)):
                rule = f"at least {least}" if most == math.inf else f"from {least:g} to {most:g}"
                raise ConfigurationError(f"{name}: must be a {'whole ' * is_whole}number {rule}, got {value}.")
        for token, bias in self.logit_bias.items():
            if not abs(bias) <= FAR:
                raise ConfigurationError(f"logit_bias.{token}: must be from {-FAR:g} to {FAR:g}, got {bias}.")


def choose(
    logits: Float[Tensor, " V"],
    sampling: Sampling,
    *,
    prompt: Sequence[int],
    new: Sequence[int],
    draw: float,
) -> int:
    """Return the next token of a text, a prompt and the tokens written so far; `draw` in [0, 1) decides."""
    logits = _with_penalties(logits.float(), sampling, prompt, new)
    if sampling.temperature == 0:
        return int(logits.argmax())
    tokens, probabilities = _kept(logits, sampling)
    reached = probabilities.cumsum(0)
    place = torch.searchsorted(reached, draw * reached[-1], right=True).clamp(max=len(reached) - 1)
    return int(place if tokens is None else tokens[place])


def likeliest(logits: Float[Tensor, " V"], token: int, *, num: int) -> tuple[float, list[tuple[int, float]]]:
    """Return the log-probability (nats) of a token, and the `num` likeliest tokens with theirs, without any setting."""
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


def generate(
    model: LanguageModel, tokens: Tensor, *, num_new_tokens: int, sampling: Sampling | None = None, seed: int = 0
) -> Tensor:
    """Append sampled tokens to prompts without a cache: int64 [B, T] -> [B, T + num_new_tokens].

    For a model as training left it, whatever shards, casts or compiles it: it sees one shape, its last
    max_context_tokens, and returns to its mode. Each prompt draws its own random numbers.
    """
    num_prompt_tokens = tokens.shape[1]
    sampling = sampling or Sampling()
    draws = [random.Random(f"{seed}/{row}") for row in range(len(tokens))]  # strings seed alike in any process
    num_tokens = num_prompt_tokens + num_new_tokens
    text = torch.nn.functional.pad(tokens, (0, num_new_tokens))
    window_tokens = min(num_tokens, model.max_context_tokens)
    with in_evaluation_mode(model), torch.no_grad():
        for position in range(num_prompt_tokens, num_tokens):
            # Always a full window, its end not yet written: one shape to compile, and a causal model cannot see it.
            start = max(0, position - window_tokens)
            logits = model(text[:, start : start + window_tokens])[:, position - start - 1]  # [B, V]
            for row, scores in enumerate(logits):
                written: list[int] = text[row, :position].tolist()
                prompt, new = written[:num_prompt_tokens], written[num_prompt_tokens:]
                text[row, position] = choose(scores, sampling, prompt=prompt, new=new, draw=draws[row].random())
    return text
