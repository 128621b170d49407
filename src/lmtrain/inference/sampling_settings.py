"""Settings of the choice of the next token; without torch, to refuse a wrong one at once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from lmtrain.errors import ConfigurationError

FAR: Final = 1e6  # beyond it, sums and products of logits leave fp32
_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0, math.inf),
    ("top_k", 1, math.inf),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 1 / FAR, FAR),
    ("presence_penalty", -FAR, FAR),
    ("frequency_penalty", -FAR, FAR),
)


@final
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose; the defaults draw from the model's own distribution.

    `temperature` 0 takes the likeliest. Kept are the `top_k` likeliest (None: all), of these as few as reach `top_p`
    of the probability, of these none below `min_p` times the likeliest. `repetition_penalty` divides positive logits
    of tokens anywhere in the text and multiplies negative ones (arXiv 1909.05858 section 4.1). `presence_penalty` is
    taken off logits of tokens written so far, `frequency_penalty` once for each time. `logit_bias` adds to logits by
    token. Raises: ConfigurationError for a value out of its bounds.
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
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise ConfigurationError(f"{name}=0 is not above 0; nearest valid: 1, which changes nothing.")
        for token, bias in self.logit_bias.items():
            if not abs(bias) <= FAR:
                raise ConfigurationError(
                    f"logit_bias={bias} of token {token} is not a number from {-FAR:g} to {FAR:g}."
                )
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if value is not None and not (least <= value <= most and math.isfinite(value)):
                nearest = least if value < least else most if value > most else 1
                rule = f"is below {least}" if value < least else f"is not a number from {least} to {most}"
                raise ConfigurationError(f"{name}={value} {rule}; nearest valid: {nearest}.")

    @property
    def is_plainly_greedy(self) -> bool:
        """Tell whether the largest logit is the answer."""
        changed = (self.repetition_penalty != 1, self.presence_penalty, self.frequency_penalty, self.logit_bias)
        return self.temperature == 0 and not any(changed)
