"""A run's best validation where no checkpoint of that step is kept: the best of those on disk hides overfitting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.tracking.run_log import Point, held_out_bytes
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts

CHECKPOINT = "callbacks.checkpoint"


@dataclass(frozen=True, kw_only=True)
class UnkeptBest:
    """A score below those of all checkpoints, its step, and the words that would have kept it."""

    bits_per_byte: float
    step: int
    words: str

    def __str__(self) -> str:
        """Write it in a line."""
        return f"{self.bits_per_byte:.3f} at step {self.step:,}, not kept: {self.words} keeps more"


def unkept_best(
    points: Sequence[Point], checkpoints: Sequence[CheckpointFacts], config: dict[str, Any]
) -> UnkeptBest | None:
    """Compare the scores on the bytes of the newest one with the checkpoints; None where the best has one."""
    scored = [point for point in points if BITS_PER_BYTE in point.metrics]
    comparable = [point for point in scored if held_out_bytes(point) == held_out_bytes(scored[-1])]
    best = min(comparable, key=lambda point: point.metrics[BITS_PER_BYTE], default=None)
    kept = [facts.metrics[BITS_PER_BYTE] for facts in checkpoints if BITS_PER_BYTE in facts.metrics]
    if best is None or not best.step or not kept or best.metrics[BITS_PER_BYTE] >= min(kept):
        return None
    if best.step in {facts.step for facts in checkpoints}:
        return None  # its checkpoint was written before the score
    interval = math.gcd(*(point.step for point in scored if point.step <= best.step))
    words = [f"{CHECKPOINT}.every_steps={interval}"]
    if _keep_best(config) is False:
        words.append(f"{CHECKPOINT}.keep_best=true")
    return UnkeptBest(bits_per_byte=best.metrics[BITS_PER_BYTE], step=best.step, words=" ".join(words))


def _keep_best(config: dict[str, Any]) -> Any:
    callbacks = config.get("callbacks")  # anybody's file
    checkpoint = callbacks.get("checkpoint") if isinstance(callbacks, dict) else None
    return checkpoint.get("keep_best") if isinstance(checkpoint, dict) else None
