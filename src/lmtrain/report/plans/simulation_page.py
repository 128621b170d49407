"""Simulated fleets: memory by kind, messages by group, time, and a table of several."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.quantities import format_count
from lmtrain.accounting.training_plan.simulated_step import MessageCount, SimulatedFleet
from lmtrain.report.show import show, title_line

PHASES: Final = {"forward": "forward pass", "backward": "backward pass", "step": "optimizer"}
KINDS: Final = {"gather": "gathers", "scatter": "scatters", "reduce": "all-reduces", "exchange": "all-to-alls"}


def print_simulation(title: str, fleets: Sequence[SimulatedFleet], bases: Mapping[str, SimulatedFleet]) -> None:
    """Print one fleet at length, or a table of several, in colour on a terminal."""
    show(page(title, fleets, bases))


def page(title: str, fleets: Sequence[SimulatedFleet], bases: Mapping[str, SimulatedFleet]) -> RenderableType:
    """Lay out one fleet at length, or a table of several."""
    rule = title_line(f"{title}, simulated")
    if len(fleets) > 1:
        return Group(rule, _table(fleets, bases), *_problems(fleets))
    (fleet,) = fleets
    return Group(
        rule,
        _grid(_facts(fleet, bases[fleet.strategy])),
        Text("\nMemory at the fullest moment of each phase", style="bold"),
        _memory(fleet),
        Text("\nMessages of a rank in a step", style="bold"),
        _messages(fleet.figures.messages),
        *_problems(fleets),
    )


def _facts(fleet: SimulatedFleet, base: SimulatedFleet) -> Iterator[tuple[str, str]]:
    batch, time = fleet.batch, fleet.figures.time
    factors = [
        f"{format_count(batch.sequences_per_micro_step, 'sequence')} of {batch.context_tokens:,}",
        format_count(batch.accumulation_micro_steps, "micro-step"),
        format_count(batch.num_data_ranks, "data rank"),
    ]
    waits = f"{time.exposed_seconds:.4g} s waiting for messages, which take {time.message_seconds:.4g} s"
    held = "" if fleet.device_bytes is None else f" of {fleet.device_bytes / 1e9:.1f} GB"
    yield "strategy", f"{fleet.strategy} on {format_count(batch.num_ranks, 'rank')}"
    yield "batch", f"{batch.tokens_per_step:,} tokens per step: {' x '.join(factors)}"
    yield "step", f"{time.seconds:.4g} s: {time.compute_seconds:.4g} s of computing, {waits}"
    yield "speed", f"{fleet.tokens_per_second_per_device:,.0f} tokens/s per device, {fleet.mfu:.1%} MFU (PaLM's count)"
    if base.batch.num_ranks != batch.num_ranks:
        ranks = format_count(base.batch.num_ranks, "rank")
        yield "scaling", f"{fleet.efficiency(base):.1%} of the speed per device on {ranks}"
    yield "memory", f"{fleet.figures.peak_bytes / 1e9:.1f} GB{held} per device"


def _memory(fleet: SimulatedFleet) -> Table:
    peaks = fleet.figures.peaks
    kinds = [kind for kind in next(iter(peaks.values())) if any(peak[kind] >= 5e5 for peak in peaks.values())]
    table = _right(1 + len(peaks))
    table.add_row("", *(Text(PHASES[phase], style="dim") for phase in peaks))
    for kind in kinds:
        table.add_row(f"  {kind}", *(f"{peak[kind] / 1e9:,.2f} GB" for peak in peaks.values()))
    table.add_row("  all", *(f"{sum(peak.values()) / 1e9:,.2f} GB" for peak in peaks.values()), style="bold")
    return table


def _messages(counts: Sequence[MessageCount]) -> Table:
    table = _right(5)
    table.add_row("", *(Text(word, style="dim") for word in ("group", "messages", "input", "sent")))
    for each in counts:
        apart = f", {each.stride} apart" if each.stride > 1 else ""
        table.add_row(
            f"  {KINDS[each.kind]}",
            f"{format_count(each.num_ranks, 'rank')}{apart}",
            f"{each.num_messages:,.0f}",
            _size(each.num_bytes),
            _size(each.sent_bytes),
        )
    return table


def _table(fleets: Sequence[SimulatedFleet], bases: Mapping[str, SimulatedFleet]) -> Table:
    table = _right(8)
    heads = ("ranks", "step", "exposed", "tokens/s per device", "MFU", "scaling", "memory")
    table.add_row("  strategy", *(Text(word, style="dim") for word in heads))
    for fleet in fleets:
        time = fleet.figures.time
        table.add_row(
            f"  {fleet.strategy}",
            f"{fleet.batch.num_ranks:,}",
            f"{time.seconds:.3f} s",
            f"{time.exposed_seconds / time.seconds:.1%}",
            f"{fleet.tokens_per_second_per_device:,.0f}",
            f"{fleet.mfu:.1%}",
            f"{fleet.efficiency(bases[fleet.strategy]):.1%}",
            Text(f"{fleet.figures.peak_bytes / 1e9:,.1f} GB", style="bold red" if fleet.fits is False else ""),
        )
    return table


def _problems(fleets: Sequence[SimulatedFleet]) -> list[RenderableType]:
    """Return a line for each fleet too large for its devices."""
    return [
        Text(
            f"\n{fleet.strategy} on {format_count(fleet.batch.num_ranks, 'rank')} does not fit: "
            f"{fleet.figures.peak_bytes / 1e9:.1f} GB of {(fleet.device_bytes or 0) / 1e9:.1f} GB per device; "
            "`lmtrain plan` has advice.",
            style="bold red",
        )
        for fleet in fleets
        if fleet.fits is False
    ]


def _size(num_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:,.0f} bytes"


def _right(num_columns: int) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column()
    for _ in range(num_columns - 1):
        table.add_column(justify="right")
    return table


def _grid(rows: Iterator[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", min_width=12)
    table.add_column()
    for name, value in rows:
        table.add_row(f"  {name}", value)
    return table
