"""A comparison as people read it: tables with the noise next to every difference, and the curves of all choices."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.charts import Line, ink_of
from lmtrain.report.compared_runs import Choice, is_of_training
from lmtrain.report.comparison import Comparison, Reach
from lmtrain.report.show import plain_text, show
from lmtrain.report.spread import difference
from lmtrain.tracking.sweep_file import ASSISTANT

REACHES_HEAD: Final = ("choice", "tokens", "of baseline's", "FLOPs", "work in steps")
OPENING: Final = 0.1  # of the tokens, where every curve falls steeply from the same height


def print_comparison(comparison: Comparison) -> None:
    """Print the page, in colour on a terminal."""
    show(page(comparison))


def text_of(comparison: Comparison) -> str:
    """Return the page as plain text."""
    return plain_text(page(comparison))


def page(comparison: Comparison) -> RenderableType:
    """Lay out the comparison."""
    parts: list[RenderableType] = [Rule(Text(_title(comparison), style="bold"), style="dim cyan")]
    parts.append(_table(finals_head(comparison), finals_rows(comparison)))
    parts += [Text(f"\n{verdict}", style="bold") for verdict in [verdict_words(comparison)] if verdict]
    parts += [Text(f"\n{note}", style="dim") for note in comparison.notes]
    if comparison.reaches:
        parts += [Text(f"\n{target_words(comparison)}", style="bold"), _table(REACHES_HEAD, reaches_rows(comparison))]
    if comparison.left_out:
        parts.append(Text("\nLeft out", style="bold"))
        parts += [Text(f"  {name}: {reason}", style="red") for name, reason in comparison.left_out.items()]
    return Group(*parts)


def _title(comparison: Comparison) -> str:
    held_out = comparison.held_out
    if is_of_training(comparison.metric):
        return f"{comparison.metric}, {held_out.source}"
    if held_out.is_assistant:
        return f"{comparison.metric}, {ASSISTANT} in {held_out.source}"
    if not comparison.is_one_part:
        return f"{comparison.metric}, parts of the {held_out.split_bytes:,} held-out bytes of {held_out.source}"
    return f"{comparison.metric}, {held_out.num_bytes:,} held-out bytes of {held_out.source}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(head):
        table.add_column(column, justify="right" if index else "left", overflow="fold", no_wrap=index > 0)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def finals_head(comparison: Comparison) -> tuple[str, ...]:
    """Name the columns of `finals_rows`."""
    compared = "difference ± 95%" if comparison.is_one_part else "held-out bytes"
    return ("choice", "seeds", "mean", "deviation", compared, "tokens")


def finals_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row per choice: its last values, and its difference from the baseline with the noise."""
    decimals = comparison.decimals
    return [
        (
            choice.label,
            str(choice.final.num),
            f"{choice.final.mean:.{decimals}f}",
            "" if (deviation := choice.final.standard_deviation) is None else f"{deviation:.{decimals}f}",
            difference_words(comparison, choice),
            format_quantity(choice.tokens),
        )
        for choice in comparison.choices
    ]


def difference_words(comparison: Comparison, choice: Choice) -> str:
    """Write a choice's difference from the baseline with its noise; the bytes of its score if scores do not compare."""
    if not comparison.is_one_part:
        return f"{choice.held_out_bytes:,}"
    found, decimals = comparison.differences.get(choice.label), comparison.decimals
    if found is None:
        return "baseline"
    if found.plus_minus is None:
        return f"{found.mean:+.{decimals}f}, noise unknown"
    return f"{found.mean:+.{decimals}f} ± {found.plus_minus:.{decimals}f}{' (noise)' if found.is_noise else ''}"


def verdict_words(comparison: Comparison) -> str | None:
    """Write the best choice's lead over the next, or over a named baseline, and whether it is noise.

    None: there is one choice, or scores do not compare.
    """
    best, *others = comparison.choices
    if not others or not comparison.is_one_part:
        return None
    other = others[0] if comparison.baseline is best else comparison.baseline
    found = difference(other.by_seed, best.by_seed)  # over shared seeds, which may rank the two the other way round
    if not found.mean:
        return f"{best.label} and {other.label} have the same score"
    better = f"{abs(found.mean):.{comparison.decimals}f} {'better' if found.mean >= 0 else 'worse'} than {other.label}"
    if found.plus_minus is None:
        return f"{best.label} is {better}: noise unknown"
    deviations = f", {abs(found.mean) / found.deviation:.1f} deviations" if found.deviation else ""
    seeds = format_count(found.num_seeds, "seed")
    return f"{best.label} is {better}{deviations}, {seeds}: {'within' if found.is_noise else 'more than'} noise"


def target_words(comparison: Comparison) -> str:
    """Name the value to reach."""
    return f"To reach {comparison.target:.{comparison.decimals}f}, by the mean curve"


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
    reading = "lower is better" if comparison.is_one_part else "of different parts of the text: they do not compare"
    return f"{comparison.metric} over tokens, {len(comparison.choices)} choices, {reading}"


def curves_top(comparison: Comparison) -> float:
    """Return the highest value to draw: all curves fall steeply at first, and would be alike at their ends."""
    most = max(choice.tokens for choice in comparison.choices)
    points = [point for choice in comparison.choices for run in choice.runs for point in run.curve]
    return max(value for tokens, value in points if tokens >= OPENING * most)


def curves(comparison: Comparison) -> list[Line]:
    """Return the mean curve of each choice with the band of its seeds, named by its last value."""
    found: list[Line] = []
    for index, choice in enumerate(comparison.choices):
        colour, dash = ink_of(index)
        name = f"{choice.final.mean:.{comparison.decimals}f}  {choice.label}"
        found.append(Line(points=choice.mean_curve, colour=colour, dash=dash, band=choice.band, name=name))
    return found
