"""A comparison of ranks with one process as people read it."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.observed.parity_checks import ORDER, Kind, Parity, RankDifference
from lmtrain.accounting.quantities import format_count
from lmtrain.report.show import columns

HEADS: dict[Kind, str] = {
    "loss": "loss",
    "gradient": "gradients",
    "gradient norm": "their norm",
    "weight": "weights",
}


def page(found: Parity) -> RenderableType:
    """Lay out the largest relative differences by step, the first beyond the tolerance, and departures."""
    ranks = format_count(found.num_ranks, "rank")
    title = f"strategy={found.strategy} on {ranks} compared with one process: largest relative differences"
    return Group(
        Text(title, style="bold"),
        _table(found),
        Text(_of_first(found.first) if found.first else _of_equal(found), style="red" if found.first else "green"),
        Text(f"Other than asked: {', '.join(found.changed)}.", style="dim"),
    )


def line(words: Sequence[str], found: Parity) -> str:
    """Return a draw and its result in one line, and a failing one's difference in another."""
    if found.is_equal:
        gradients = max((each.relative for each in found.differences if each.kind == "gradient"), default=0.0)
        return f"equal ({gradients:.0e})  {' '.join(words)}"
    return f"DIFFERS         {' '.join(words)}\n  {_of_first(found.first) if found.first else found.failure}"


def _table(found: Parity) -> Table:
    kinds: list[Kind] = [kind for kind in ORDER if kind in HEADS]
    steps = range(1, found.num_steps + 1)
    rows = [[str(step), *(_cell(found.worst(step, kind)) for kind in kinds)] for step in steps]
    return columns(rows, head=["step", *(HEADS[kind] for kind in kinds)])


def _cell(worst: RankDifference | None) -> str:
    return "-" if worst is None else f"{worst.relative:.1e}"


def _of_equal(found: Parity) -> str:
    tensors = format_count(len({each.name for each in found.differences if each.name}), "tensor")
    return (
        f"Equal: {tensors} with gradients over {format_count(found.num_steps, 'step')}, within "
        f"{found.tolerance:g} of the largest gradient and a hundred times that of the largest update."
    )


def _of_first(first: RankDifference) -> str:
    what = f"{first.kind} of {first.name}" if first.name else first.kind
    return (
        f"First difference: step {first.step}, {what}, by {first.largest:.3g} ({first.relative:.3g} relative), on "
        f"rank{'s' * (len(first.ranks) > 1)} {', '.join(map(str, first.ranks))}."
    )
