"""The newest scores of held-out text, from the callback of validation to its readers."""

import math
from dataclasses import dataclass, field

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE


@dataclass
class HeldOutScores:
    """Metrics of this attempt's newest validation, all better when lower, alike on all ranks; step None: none yet.

    `num_bytes` were read; scores of other bytes do not compare. `keeps_best` asks for a checkpoint of each best one, by
    its `metric`.
    """

    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    num_bytes: int = 0
    keeps_best: bool = False
    metric: str = BITS_PER_BYTE
    _best: float = field(default=math.inf, init=False)
    _best_num_bytes: int = field(default=0, init=False)

    def is_new_best(self, step: int) -> bool:
        """Tell once whether the validation after a step is to be kept: better than all before, on the same bytes."""
        if not self.keeps_best or self.step != step:
            return False
        if self._best_num_bytes != self.num_bytes:
            self._best, self._best_num_bytes = math.inf, self.num_bytes
        value, before = self.metrics.get(self.metric, math.inf), self._best
        self._best = min(before, value)
        return value < before
