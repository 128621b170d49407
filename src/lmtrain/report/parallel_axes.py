"""A sweep's trials as lines through parallel axes: an axis per key, one below the other, and the score as the last.

Axes lie across the page and lines run down it, so that names and values fit on a phone too.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.quantities import Unit, format_quantity, parse_quantity, unit_of
from lmtrain.errors import ConfigurationError
from lmtrain.report.comparison_page import ink_of
from lmtrain.report.markup import Markup, tag
from lmtrain.report.spread import score_decimals

WIDTH: Final = 400
ROW_PIXELS: Final = 104
AXIS_PIXELS: Final = 34  # from the top of a row to its axis
LABEL_PIXELS: Final = 42  # below the last axis
BEST_COLOUR: Final = ink_of(0)[0]  # as in curves and tables
FAINTEST: Final = 0.2
WORST_SHOWN: Final = 4.0  # medians above the best score; a trial that failed badly would squeeze the others together
WIDE: Final = 10.0  # numbers with a larger ratio of largest to smallest are placed by their logarithm
STYLE: Final = """
.parallel{position:relative;margin:12px 8px;font-size:12px;color:var(--dim)}
.parallel svg{position:absolute;inset:0;width:100%;height:100%}
.parallel svg *{vector-effect:non-scaling-stroke}
.parallel span{position:absolute;line-height:1.2;white-space:nowrap;padding:0 4px;pointer-events:none;
text-shadow:0 0 2px var(--page),0 0 2px var(--page),0 0 3px var(--page),0 0 4px var(--page),0 0 5px var(--page)}
.parallel .key{left:0;font-weight:600;color:var(--ink);max-width:100%;overflow:hidden;text-overflow:ellipsis}
.parallel .middle{transform:translateX(-50%);overflow:hidden;text-overflow:ellipsis}
.parallel .high{right:0}.parallel .low{left:0}
"""


@dataclass(frozen=True, kw_only=True)
class TrialLine:
    """A trial's values as typed, and its score, or None."""

    number: int
    values: Mapping[str, str]
    score: float | None


@dataclass(frozen=True)
class Axis:
    """A key's values: numbers of its `unit`, or a list's `names` in order."""

    low: float
    high: float
    is_log: bool = False
    names: tuple[str, ...] = ()
    unit: Unit = "count"

    def number(self, value: str) -> float:
        """Return a value's number, NaN if it is not one."""
        found = _number(value, self.unit)
        return math.nan if found is None else found

    def place(self, value: str) -> float:
        """Return where a value lies, from 0 to 1."""
        if self.names:
            return (self.names.index(value) + 0.5) / len(self.names)
        low, high, at = (math.log(x) if self.is_log else x for x in (self.low, self.high, self.number(value)))
        return 0.5 if high == low else (at - low) / (high - low)


def axes_of(choices: Sequence[Mapping[str, str]], space: Mapping[str, str] | None = None) -> dict[str, Axis]:
    """Return the axis of each key with several values: numbers between their ends, all else as a list.

    `space` holds the keys' spaces as in overrides, which say if a logarithm is drawn.
    """
    found: dict[str, Axis] = {}
    for key in dict.fromkeys(key for values in choices for key in values):
        words = [*dict.fromkeys(values[key] for values in choices if key in values)]
        numbers = [number for word in words if (number := _number(word, unit_of(key))) is not None]
        if len(words) < 2:
            continue
        if len(numbers) < len(words):
            found[key] = Axis(0.0, 1.0, names=tuple(sorted(words)))
        elif max(numbers) > min(numbers):
            typed = (space or {}).get(key, "")
            is_wide = min(numbers) > 0 and max(numbers) >= WIDE * min(numbers)
            is_log = typed.startswith("tag(log") if "interval(" in typed else is_wide
            found[key] = Axis(min(numbers), max(numbers), is_log=is_log, unit=unit_of(key))
    return found


def parallel_axes(trials: Sequence[TrialLine], *, metric: str, space: Mapping[str, str] | None = None) -> Markup:
    """Draw the trials, fainter the worse, the best on top in its own colour.

    The first axis has its labels above it and the last one below, where no line runs; those between have a rim of the
    page's colour, so that they can be read over the lines.
    """
    axes = axes_of([trial.values for trial in trials], space)
    scores = [trial.score for trial in trials if trial.score is not None]
    if not axes or len(scores) < 2:
        return Markup("")
    low = min(scores)
    high = min(max(scores), low + WORST_SHOWN * (statistics.median(scores) - low))
    ends = (low, high if high > low else max(scores))
    *others, best = sorted(trials, key=lambda trial: (trial.score is not None, -(trial.score or 0.0)))
    height = ROW_PIXELS * len(axes) + AXIS_PIXELS + LABEL_PIXELS
    drawn = [tag("line", x1=0, x2=WIDTH, y1=_y(row), y2=_y(row), stroke="var(--dim)") for row in range(len(axes) + 1)]
    drawn += [*(_line(trial, axes, ends) for trial in others), _line(best, axes, ends, is_best=True)]
    labels = [label for row, (key, axis) in enumerate(axes.items()) for label in _labels(row, key, axis)]
    labels += _score_labels(_y(len(axes)), metric, scores, ends)
    shown = tag("svg", *drawn, viewBox=f"0 0 {WIDTH} {height}", preserveAspectRatio="none", aria_hidden="true")
    name = f"{len(scores)} trials through {', '.join(axes)} to {metric}"
    return tag("div", shown, *labels, class_="parallel", role="img", aria_label=name, style=f"height:{height}px")


def _y(row: int) -> int:
    return row * ROW_PIXELS + AXIS_PIXELS


def _line(trial: TrialLine, axes: Mapping[str, Axis], ends: tuple[float, float], *, is_best: bool = False) -> Markup:
    """Draw a trial; one without a score is dotted and ends above the last axis."""
    points = [(axis.place(trial.values[key]) * WIDTH, _y(row)) for row, (key, axis) in enumerate(axes.items())
              if key in trial.values]  # fmt: skip
    ink = {"stroke": "var(--dim)", "stroke_width": 1.5, "stroke_dasharray": "2 4"}
    if trial.score is not None:
        place = min(1.0, (trial.score - ends[0]) / ((ends[1] - ends[0]) or 1.0))
        points.append((place * WIDTH, _y(len(axes))))
        ink = {"stroke": "var(--dim)", "stroke_width": 1.5, "stroke_opacity": f"{1 - (1 - FAINTEST) * place:.2f}"}
    if is_best:
        ink = {"stroke": BEST_COLOUR, "stroke_width": 3}
    path = " ".join(f"{x:.1f},{y}" for x, y in points)
    return tag("polyline", tag("title", f"trial {trial.number}"), points=path, fill="none", **ink)


def _labels(row: int, key: str, axis: Axis) -> list[Markup]:
    of_key, of_values = (-34, -17) if row == 0 else (-22, 6)
    name, at = f"{key}{' (logarithmic)' if axis.is_log else ''}", f"top:{_y(row) + of_values}px"
    found = [tag("span", name, class_="key", style=f"top:{_y(row) + of_key}px")]
    width = f"max-width:{100 / len(axis.names):.1f}%" if axis.names else ""
    found += [
        tag("span", name, class_="middle", style=f"{at};left:{axis.place(name):.1%};{width}") for name in axis.names
    ]
    for side, value in (("low", axis.low), ("high", axis.high)) if not axis.names else ():
        written = f"{value:.4g}" if abs(value) < 10_000 else format_quantity(value)
        found.append(tag("span", written, class_=side, style=at))
    return found


def _score_labels(y: int, metric: str, scores: Sequence[float], ends: tuple[float, float]) -> list[Markup]:
    decimals, more = score_decimals(scores), " or more" if max(scores) > ends[1] else ""
    return [
        tag("span", f"{metric}, lower is better", class_="key", style=f"top:{y + 24}px"),
        tag("span", f"{ends[0]:.{decimals}f}", class_="low", style=f"top:{y + 6}px"),
        tag("span", f"{ends[1]:.{decimals}f}{more}", class_="high", style=f"top:{y + 6}px"),
    ]


def _number(word: str, unit: Unit) -> float | None:
    try:
        number = float(word)
    except ValueError:
        try:
            number = float(parse_quantity(word, unit=unit))
        except ConfigurationError:
            return None
    return number if math.isfinite(number) else None
