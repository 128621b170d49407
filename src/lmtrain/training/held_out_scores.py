"""The newest scores of held-out text, from the callback of validation to its readers."""

from dataclasses import dataclass, field


@dataclass
class HeldOutScores:
    """Metrics of this attempt's newest validation, all better when lower, alike on all ranks; step None: none yet."""

    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
