"""A comparison as people read it: tables with the noise next to every difference, and the curves of all choices."""

from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.charts import Line, ink_of
from lmtrain.report.compared_runs import Choice
from lmtrain.report.comparison import Comparison, Reach
from lmtrain.report.show import columns
from lmtrain.report.spread import difference_words, lead_words
from lmtrain.tracking.sweep_file import ASSISTANT

FINALS_HEAD: Final = ("choice", "seeds", "mean", "deviation", "difference ± 95%", "tokens")
REACHES_HEAD: Final = ("choice", "tokens", "of baseline's", "FLOPs", "work in steps")
OPENING: Final = 0.1  # of the tokens, where every curve falls steeply from the same height


def page(comparison: Comparison) -> RenderableType:
    """Lay out the comparison."""
    parts: list[RenderableType] = [Rule(Text(_title(comparison), style="bold"), style="dim cyan")]
    parts.append(columns(finals_rows(comparison), head=FINALS_HEAD))
    parts += [Text(f"\n{verdict}", style="bold") for verdict in [verdict_words(comparison)] if verdict]
    parts += [Text(f"\n{note}", style="dim") for note in comparison.notes]
    parts += [Text(f"\n{target_words(comparison)}", style="bold"), columns(reaches_rows(comparison), head=REACHES_HEAD)]
    if comparison.left_out:
        parts.append(Text("\nLeft out", style="bold"))
        parts += [Text(f"  {name}: {reason}", style="red") for name, reason in comparison.left_out.items()]
    return Group(*parts)


def _title(comparison: Comparison) -> str:
    held_out = comparison.held_out
    if comparison.metric.startswith("train/"):
        return f"{comparison.metric}, {held_out.source}"
    if held_out.is_assistant:
        return f"{comparison.metric}, {ASSISTANT} in {held_out.source}"
    return f"{comparison.metric}, {held_out.num_bytes:,} held-out bytes of {held_out.source}"


def finals_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row per choice: its last values, and its difference from the baseline with the noise."""
    return [_finals(choice, comparison) for choice in comparison.choices]


def _finals(choice: Choice, comparison: Comparison) -> tuple[str, ...]:
    deviation, found = choice.final.standard_deviation, comparison.differences.get(choice.label)
    return (
        choice.label,
        str(choice.final.num),
        f"{choice.final.mean:.4f}",
        "" if deviation is None else f"{deviation:.4f}",
        "baseline" if found is None else difference_words(found),
        format_quantity(choice.tokens),
    )


def verdict_words(comparison: Comparison) -> str | None:
    """Write the best choice's lead over the next, or over a named baseline; None: there is one choice."""
    best, *others = comparison.choices
    if not others:
        return None
    other = others[0] if comparison.baseline is best else comparison.baseline
    return lead_words(best.label, best.by_seed, other.label, other.by_seed)


def target_words(comparison: Comparison) -> str:
    """Name the value to reach."""
    return f"To reach {comparison.target:.4f}, by the mean curve"


def reaches_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row per choice: tokens until the target, their share of the baseline's, FLOPs and time."""
    return [(choice.label, *_reach_words(comparison.reaches[choice.label])) for choice in comparison.choices]


def _reach_words(reach: Reach) -> tuple[str, str, str, str]:
    if reach.tokens is None or reach.flops is None:
        return "never", "", "", ""
    return (
        format_quantity(round(reach.tokens)),
        "" if reach.of_baseline is None else f"{reach.of_baseline:.0%}",
        f"{reach.flops:.3g}",
        "" if reach.seconds is None else format_quantity(reach.seconds, "seconds"),
    )


def curves_title(comparison: Comparison) -> str:
    """Name the plot of all curves."""
    return f"{comparison.metric} over tokens, {len(comparison.choices)} choices, lower is better"


def curves_top(comparison: Comparison) -> float:
    """Return the highest value to draw: all curves fall steeply at first, and would be alike at their ends."""
    most = max(choice.tokens for choice in comparison.choices)
    points = [point for choice in comparison.choices for run in choice.runs for point in run.curve]
    return max(value for tokens, value in points if tokens >= OPENING * most)


def curves(comparison: Comparison) -> list[Line]:
    """Return the mean curve of each choice with the band of its seeds."""
    inks = [ink_of(index) for index in range(len(comparison.choices))]
    return [
        Line(points=choice.mean_curve, colour=colour, dash=dash, band=choice.band)
        for choice, (colour, dash) in zip(comparison.choices, inks, strict=True)
    ]
