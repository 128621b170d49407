"""A learning-rate range test: lines in the terminal, and a plot as one HTML file."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.lr_range import LrRange
from lmtrain.report.charts import Line, plot, ticks
from lmtrain.report.markup import Markup, section, table, tag, web_page
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.redaction import redact_override

TITLE: Final = "Range test of the learning rate"


def lr_range_lines(found: LrRange, *, lr: float, command: str, plot: Path) -> list[str]:
    """Return the finding: rates, plot and the command to type."""
    lines = [*(f"{name}: {value}" for name, value in _rows(found, lr)), f"plot: {plot}"]
    return [*lines, "", f"  {command}"] if found.steepest else [*lines, f"no suggestion: {found.problem}"]


def write_lr_range(found: LrRange, *, lr: float, folder: Path, words: Sequence[str]) -> Path:
    """Write FOLDER/lr-HASH.html, named after the config's settings, and return its path."""
    name = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()[:8]
    path = folder / f"lr-{name}.html"
    typed = " ".join(redact_override(word) for word in words) or "the defaults"
    parts = [
        tag("p", "Smoothed loss in nats per token over the learning rate, which rose by the same factor each step."),
        tag("div", lr_range_chart(found, lr=lr), class_="tall"),
        table(_rows(found, lr), numeric=True),
        *([tag("p", f"No suggestion: {found.problem}.")] if found.problem else []),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    content = section("Loss over learning rate", *parts)
    write_text(path, web_page(TITLE, tag("h1", TITLE), tag("p", typed), content))
    return path


def lr_range_chart(found: LrRange, *, lr: float) -> Markup:
    """Draw the smoothed loss over the logarithm of the rate, up to a little above its start."""
    points = [(math.log10(share * lr), loss) for share, loss in found.smoothed]
    if len(points) < 2:
        return Markup("")
    losses = [loss for _, loss in points]
    top = min(max(losses), max(found.start, min(losses)) * 1.15)
    marks = ticks(min(losses), top)
    drawn = [Line(points=[(x, min(loss, top)) for x, loss in points])]
    for share, dash in ((found.steepest, "none"), (found.lowest, "4 4")):
        if share is not None:
            x = math.log10(share * lr)
            drawn.append(Line(points=[(x, marks[0]), (x, top)], colour="#eb6834", dash=dash))
    first, last = (10 ** points[place][0] for place in (0, -1))
    label = f"smoothed loss over learning rates from {first:.2g} to {last:.2g}"
    return plot(drawn, label=label, show_across=lambda power: f"{10**power:.2g}")


def _rows(found: LrRange, lr: float) -> list[tuple[str, str]]:
    shares = (
        ("learning rate of the config", 1.0),
        ("where the loss falls fastest, suggested (solid)", found.steepest),
        ("where it is lowest, before it breaks (dashed)", found.lowest),
        ("where it broke and the test ended", found.broke),
    )
    return [(name, f"{share * lr:.3g}") for name, share in shares if share is not None]
