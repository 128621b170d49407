"""The newest scores of held-out text, from the callback of validation to its readers."""

from dataclasses import dataclass, field


@dataclass
class HeldOutScores:
    """Metrics of this attempt's newest validation, all better when lower, alike on all ranks; step None: none yet.

    `num_bytes` were read; scores of other bytes do not compare.
    """

    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    num_bytes: int = 0
