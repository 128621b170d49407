"""A comparison as people read it: a row for each choice, the best first, its noise beside every difference."""

from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.comparing.choices import Choice
from lmtrain.report.comparing.compared_run import is_of_training
from lmtrain.report.comparing.comparison import Comparison, Reach
from lmtrain.report.comparing.spread import difference
from lmtrain.report.show import plain_text, show
from lmtrain.tracking.held_out_text import ASSISTANT

DIFFERENCE: Final = "difference ± 95%"
TIME: Final = "work in steps"  # without the processor's time with others


def print_comparison(comparison: Comparison) -> None:
    """Print the page, in colour on a terminal."""
    show(page(comparison))


def text_of(comparison: Comparison) -> str:
    """Return the page as plain text."""
    return plain_text(page(comparison))


def page(comparison: Comparison) -> RenderableType:
    """Lay out the comparison."""
    parts: list[RenderableType] = [Rule(Text(_title(comparison), style="bold"), style="dim cyan"), _finals(comparison)]
    parts += [Text(f"\n{verdict}", style="bold") for verdict in [verdict_words(comparison)] if verdict]
    parts += [Text(f"\n{note}", style="dim") for note in comparison.notes]  # on the numbers above them
    if comparison.reaches:
        parts += [Text(f"\n{target_words(comparison)}", style="bold"), _reaches(comparison)]
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


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold", no_wrap=index > 0)
    return table


def _finals(comparison: Comparison) -> Table:
    table = _table("choice", "seeds", "mean", "deviation", difference_head(comparison), "tokens")
    decimals = comparison.decimals
    for choice in comparison.choices:
        deviation = choice.final.standard_deviation
        style = "bold cyan" if comparison.is_one_part and choice is comparison.baseline else ""
        table.add_row(
            Text(choice.label, style=style),
            str(choice.final.num),
            f"{choice.final.mean:.{decimals}f}",
            "" if deviation is None else f"{deviation:.{decimals}f}",
            _difference(comparison, choice),
            format_quantity(choice.tokens),
        )
    return table


def _difference(comparison: Comparison, choice: Choice) -> Text:
    """Write a difference with its noise; a difference within the noise is dim."""
    found = comparison.differences.get(choice.label)
    if not comparison.is_one_part:
        return Text(difference_words(comparison, choice))
    style = "bold cyan" if found is None else "dim" if found.plus_minus is None or found.is_noise else "green"
    return Text(difference_words(comparison, choice), style=style)


def difference_head(comparison: Comparison) -> str:
    """Name the column of `difference_words`."""
    return DIFFERENCE if comparison.is_one_part else "held-out bytes"


def difference_words(comparison: Comparison, choice: Choice) -> str:
    """Write a choice's difference from the baseline with its noise; a difference within the noise is called so.

    Where scores do not compare, write the bytes of its own.
    """
    if not comparison.is_one_part:
        return f"{choice.held_out_bytes:,}"
    found, decimals = comparison.differences.get(choice.label), comparison.decimals
    if found is None:
        return "baseline"
    if found.plus_minus is None:
        return f"{found.mean:+.{decimals}f}, noise unknown"
    return f"{found.mean:+.{decimals}f} ± {found.plus_minus:.{decimals}f}{' (noise)' if found.is_noise else ''}"


def verdict_words(comparison: Comparison) -> str | None:
    """Tell the best choice's lead over the next, or over a named baseline, and whether it is noise.

    None: there is one choice, or their scores do not compare.
    """
    best, *others = comparison.choices
    if not others or not comparison.is_one_part:
        return None
    other = others[0] if comparison.baseline is best else comparison.baseline
    found = difference(other.by_seed, best.by_seed)  # over shared seeds, whose best may be another one's
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


def _reaches(comparison: Comparison) -> Table:
    table = _table("choice", "tokens", "of baseline's", "FLOPs", TIME)
    for choice in comparison.choices:
        table.add_row(choice.label, *reach_words(comparison.reaches[choice.label]))
    return table


def reach_words(reach: Reach) -> tuple[str, str, str, str]:
    """Write the tokens, their share of the baseline's, the FLOPs and the time until the target."""
    if reach.between is None:
        return "never", "", "", ""
    if reach.tokens is None or reach.flops is None:
        before, after = (format_quantity(round(tokens)) for tokens in reach.between)
        return f"between {before} and {after}", "", "", ""
    return (
        format_quantity(round(reach.tokens)),
        "" if reach.of_baseline is None else f"{reach.of_baseline:.0%}",
        f"{reach.flops:.3g}",
        "" if reach.seconds is None else format_quantity(reach.seconds, "seconds"),
    )
