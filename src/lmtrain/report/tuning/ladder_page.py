"""The ladder of optimisations: tokens a second and MFU of each rung, as lines and as one plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.charts import BAR_HEIGHT, WIDTH, square
from lmtrain.report.markup import Markup, joined, section, table, tag
from lmtrain.report.tuning.tuning_page import write_tuning_page

SPEED, MFU = "#2a78d6", "#eb6834"
TITLE: Final = "The ladder of optimisations"


@dataclass(frozen=True, kw_only=True)
class RungSpeed:
    """A rung, its words, and the medians of its timed steps; None with a `problem`."""

    rung: str
    words: str
    tokens_per_second: float | None
    mfu: float | None
    problem: str | None = None


def ladder_lines(rungs: Sequence[RungSpeed], *, plot: Path) -> list[str]:
    """Return a line a rung: speed, MFU, and the gain over the rung before and over the first."""
    lines = [f"{'rung':<16} {'tokens/s':>10} {'MFU':>7} {'x before':>9} {'x first':>8}"]
    lines += [
        f"{name:<16} {speed:>10} {mfu:>7} {before:>9} {first:>8}" for name, speed, mfu, before, first in _rows(rungs)
    ]
    lines += [f"  {rung.rung}: {rung.problem}" for rung in rungs if rung.problem]
    return [*lines, f"plot: {plot}"]


def write_ladder(rungs: Sequence[RungSpeed], *, folder: Path, words: Sequence[str]) -> Path:
    """Write the plot, named after the config's words, and return its path."""
    legend = tag(
        "p",
        joined([square(SPEED), "tokens a second  "]),
        joined([square(MFU), "MFU (PaLM), of the peak of its own format; each beside the largest of its kind"]),
    )
    head = ("rung", "", "tokens/s", "MFU", "times the one before", "times the first")
    said = [tag("p", f"{rung.rung}: {rung.problem}") for rung in rungs if rung.problem]
    rows = [(name, bars, *others) for bars, (name, *others) in zip(ladder_bars(rungs), _rows(rungs), strict=True)]
    speeds = section("Speed, each rung with all before it", legend, table(rows, head=head, numeric=True), *said)
    all_words = section("The words of each rung", table([(rung.rung, rung.words) for rung in rungs]))
    return write_tuning_page("ladder", TITLE, speeds, all_words, folder=folder, words=words)


def ladder_bars(rungs: Sequence[RungSpeed]) -> list[Markup]:
    """Draw two bars for each rung, each against the largest of its kind."""
    fastest = max((rung.tokens_per_second or 0.0 for rung in rungs), default=0.0) or 1.0
    best = max((rung.mfu or 0.0 for rung in rungs), default=0.0) or 1.0
    return [_bars((rung.tokens_per_second or 0.0) / fastest, (rung.mfu or 0.0) / best) for rung in rungs]


def _bars(speed: float, mfu: float) -> Markup:
    """Draw two bars of these shares of the whole width, beside their numbers in a table."""
    half = BAR_HEIGHT // 2
    drawn = [
        tag("rect", x=0, y=row * half, width=f"{share * WIDTH:.2f}", height=half - 3, fill=colour)
        for row, (share, colour) in enumerate(((speed, SPEED), (mfu, MFU)))
    ]
    style = f"display:block;width:min(340px,24vw);height:{BAR_HEIGHT}px"
    return tag("svg", *drawn, viewBox=f"0 0 {WIDTH} {BAR_HEIGHT}", preserveAspectRatio="none", aria_hidden="true",
               style=style)  # fmt: skip


def _rows(rungs: Sequence[RungSpeed]) -> list[tuple[str, str, str, str, str]]:
    found: list[tuple[str, str, str, str, str]] = []
    first = before = None
    for rung in rungs:
        speed = rung.tokens_per_second
        mfu = "-" if rung.mfu is None else f"{rung.mfu:.1%}"
        shown = "-" if speed is None else format_quantity(round(speed))
        found.append((rung.rung, shown, mfu, _times(speed, before), _times(speed, first)))
        first, before = first or speed, speed or before
    return found


def _times(speed: float | None, other: float | None) -> str:
    return "-" if speed is None or not other else f"{speed / other:.2f}"
