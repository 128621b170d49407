"""A comparison as people read it: a row for each choice, the best first, its noise beside every difference."""

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.choices import Choice
from lmtrain.report.comparison import Comparison, Reach
from lmtrain.report.show import plain_text, show


def print_comparison(comparison: Comparison) -> None:
    """Print the page, in colour on a terminal."""
    show(page(comparison))


def text_of(comparison: Comparison) -> str:
    """Return the page as plain text."""
    return plain_text(page(comparison))


def page(comparison: Comparison) -> RenderableType:
    """Lay out the comparison."""
    parts: list[RenderableType] = [Rule(Text(_title(comparison), style="bold"), style="dim cyan"), _finals(comparison)]
    parts += [Text(f"\n{_target(comparison)}", style="bold"), _reaches(comparison)]
    parts += [Text(f"\n{note}", style="dim") for note in comparison.notes]
    if comparison.left_out:
        parts.append(Text("\nLeft out", style="bold"))
        parts += [Text(f"  {name}: {reason}", style="red") for name, reason in comparison.left_out.items()]
    return Group(*parts)


def _title(comparison: Comparison) -> str:
    held_out = comparison.held_out
    if comparison.metric.startswith("train/"):
        return f"{comparison.metric}, {held_out.source}"
    return f"{comparison.metric}, {held_out.num_bytes:,} held-out bytes of {held_out.source}"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold", no_wrap=index > 0)
    return table


def _finals(comparison: Comparison) -> Table:
    table = _table("choice", "seeds", "mean", "deviation", "difference", "tokens")
    for choice in comparison.choices:
        deviation = choice.final.standard_deviation
        style = "bold cyan" if choice is comparison.baseline else ""
        table.add_row(
            Text(choice.label, style=style),
            str(choice.final.num),
            f"{choice.final.mean:.4f}",
            "" if deviation is None else f"{deviation:.4f}",
            _difference(comparison, choice),
            format_quantity(choice.tokens),
        )
    return table


def _difference(comparison: Comparison, choice: Choice) -> Text:
    """Write a difference with its noise; one that the noise explains is dim and says so."""
    found = comparison.differences.get(choice.label)
    if found is None:
        return Text("baseline", style="bold cyan")
    if found.plus_minus is None:
        return Text(f"{found.mean:+.4f}, noise unknown", style="dim")
    noise = " (noise)" if found.is_noise else ""
    return Text(f"{found.mean:+.4f} ± {found.plus_minus:.4f}{noise}", style="dim" if found.is_noise else "green")


def _target(comparison: Comparison) -> str:
    return f"To reach {comparison.target:.4f}, by the mean curve"


def _reaches(comparison: Comparison) -> Table:
    table = _table("choice", "tokens", "of baseline's", "FLOPs", "seconds")
    for choice in comparison.choices:
        table.add_row(choice.label, *_reach(comparison.reaches[choice.label]))
    return table


def _reach(reach: Reach) -> tuple[str, str, str, str]:
    if reach.tokens is None or reach.flops is None:
        return "never", "", "", ""
    return (
        format_quantity(reach.tokens),
        "" if reach.of_baseline is None else f"{reach.of_baseline:.0%}",
        f"{reach.flops:.3g}",
        "" if reach.seconds is None else format_quantity(reach.seconds, "seconds"),
    )
