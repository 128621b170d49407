"""Steps of a run with a loss out of line, and skipped steps, each with its training text."""

import math
import shlex
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.observed.metric_names import TRAIN_LOSS
from lmtrain.accounting.quantities import format_count
from lmtrain.report.markup import Markup, table, tag
from lmtrain.report.web_page import section
from lmtrain.tracking.run_log import Point

WINDOW_STEPS: Final = 128  # those of spikes=skip
LEAST_STEPS: Final = 16
NUM_SIGMAS: Final = 6.0
MOST_SHOWN: Final = 5
Texts = Callable[[int], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class LossSpike:
    """A step, its loss in nats per token and the mean of the steps before it; `was_skipped` changed nothing."""

    step: int
    loss: float
    mean: float
    was_skipped: bool = False


def find_spikes(points: Sequence[Point]) -> list[LossSpike]:
    """Return the steps 6 deviations above the mean of 128 steps before, no number, or skipped; highest first."""
    recent: deque[float] = deque(maxlen=WINDOW_STEPS)
    found: list[LossSpike] = []
    num_skipped = 0.0
    for point in points:
        loss = point.metrics.get(TRAIN_LOSS)
        if loss is None:
            continue
        skipped = point.metrics.get("train/skipped_steps", num_skipped)
        mean = statistics.fmean(recent) if recent else math.nan
        stands_out = len(recent) >= LEAST_STEPS and loss > mean + NUM_SIGMAS * statistics.pstdev(recent)
        if skipped > num_skipped or stands_out or not math.isfinite(loss):
            found.append(LossSpike(step=point.step, loss=loss, mean=mean, was_skipped=skipped > num_skipped))
        num_skipped = skipped
        if math.isfinite(loss):
            recent.append(loss)
    return sorted(found, key=lambda spike: -_height(spike))


def spikes_section(points: Sequence[Point], *, texts: Texts | None, run: str) -> Markup:
    """Return the highest spikes with their text; nothing without any."""
    spikes = find_spikes(points)
    if not spikes:
        return Markup("")
    said = f"{format_count(len(spikes), 'step')}, each {NUM_SIGMAS:g} deviations above the {WINDOW_STEPS} before it, "
    said += f"or skipped; the highest {min(MOST_SHOWN, len(spikes))}. "
    said += f"All of a step's text: lmtrain data show {shlex.quote(run)} --step N"
    rows = [
        (f"{spike.step:,}", f"{spike.loss:.4g}", f"{spike.mean:.4g}", "skipped" if spike.was_skipped else "trained")
        for spike in spikes[:MOST_SHOWN]
    ]
    parts: list[Markup] = [tag("p", said), table(rows, head=("step", "loss", "mean before", ""), numeric=True)]
    for spike in spikes[:MOST_SHOWN]:
        shown = texts(spike.step) if texts else ()
        if shown:
            parts.append(tag("details", tag("summary", f"text of step {spike.step:,}"), tag("pre", "\n\n".join(shown))))
    return section("Spikes of the loss", *parts)


def _height(spike: LossSpike) -> float:
    return spike.loss - spike.mean if math.isfinite(spike.loss) and math.isfinite(spike.mean) else math.inf
