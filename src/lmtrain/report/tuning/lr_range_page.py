"""A learning-rate range test for a person: lines in the terminal, and a plot as one HTML file."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.lr_range import LrRange
from lmtrain.report.charts import HEIGHT, Line, plot, scale, ticks
from lmtrain.report.markup import Markup, section, table, tag
from lmtrain.report.tuning.tuning_page import write_tuning_page

TITLE: Final = "Range test of the learning rate"


def lr_range_lines(found: LrRange, *, lr: float, command: str, plot: Path) -> list[str]:
    """Return the finding: rates, plot and the command to type."""
    lines = [f"{name}: {value}" for name, value in _rows(found, lr)]
    if found.steepest is None:
        return [*lines, f"plot: {plot}", f"no suggestion: {found.problem}"]
    return [*lines, f"plot: {plot}", "", f"  {command}"]


def write_lr_range(found: LrRange, *, lr: float, folder: Path, words: Sequence[str]) -> Path:
    """Write the plot beside the runs, named after the config's words, and return its path."""
    what = tag(
        "p", "Loss in nats per token, smoothed, over the rate as it is typed, which rose by the same factor each step."
    )
    said = [tag("p", f"No suggestion: {found.problem}.")] if found.problem else []
    parts = [
        what,
        tag("div", lr_range_chart(found, lr=lr), class_="tall"),
        table(_rows(found, lr), numeric=True),
        *said,
    ]
    return write_tuning_page("lr", TITLE, section("Loss over learning rate", *parts), folder=folder, words=words)


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
    across = (points[0][0], points[-1][0])
    labels = [(float(power), f"1e{power}") for power in range(math.ceil(across[0]), math.floor(across[1]) + 1)]
    place = scale((min(marks[0], *losses), max(marks[-1], top)), HEIGHT, 0.0)
    label = f"smoothed loss over learning rates from {10 ** across[0]:.2g} to {10 ** across[1]:.2g}"
    up_labels = [(mark, f"{mark:.4g}") for mark in marks]
    return plot(drawn, across=across, up=place, up_labels=up_labels, across_labels=labels, label=label)


def _rows(found: LrRange, lr: float) -> list[tuple[str, str]]:
    rows = [
        ("learning rate of the config, as it is typed", lr),
        ("where the loss falls fastest, suggested (solid)", _times(found.steepest, lr)),
        ("where it is lowest, on the way to breaking (dashed)", _times(found.lowest, lr)),
        ("where it broke and the test ended", _times(found.broke, lr)),
    ]
    return [(name, f"{value:.3g}") for name, value in rows if value is not None]


def _times(share: float | None, lr: float) -> float | None:
    return None if share is None else share * lr
