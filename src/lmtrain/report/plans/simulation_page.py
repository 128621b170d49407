"""Simulated fleets: memory by kind, messages by group, time, and a table of several."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.accounting.training_plan.simulated_fleet import SimulatedFleet
from lmtrain.report.show import columns, pairs, title_line

PHASES: Final = {"forward": "forward pass", "backward": "backward pass", "step": "optimizer"}
KINDS: Final = {
    "gather": "gathers", "scatter": "scatters", "reduce": "all-reduces", "exchange": "exchanges", "send": "sends",
}  # fmt: skip


def page(title: str, fleets: Mapping[str, SimulatedFleet]) -> RenderableType:
    """Lay out one fleet at length, or a table of several, by the words that not all of them have."""
    rule = title_line(f"{title}, simulated")
    problems = _problems([*fleets.values()])
    if len(fleets) > 1:
        return Group(rule, _table(fleets), *problems)
    (fleet,) = fleets.values()
    return Group(
        rule,
        pairs(_facts(fleet), width=12),
        Text("\nMemory at the fullest moment of each phase", style="bold"),
        _memory(fleet),
        Text("\nMessages of a rank in a step", style="bold"),
        _messages(fleet.messages),
        *problems,
    )


def _facts(fleet: SimulatedFleet) -> Iterator[tuple[str, str]]:
    batch, time = fleet.batch, fleet.time
    factors = [
        f"{format_count(batch.sequences_per_micro_step, 'sequence')} of {batch.context_tokens:,}",
        format_count(batch.accumulation_micro_steps, "micro-step"),
        format_count(batch.num_data_ranks, "data rank"),
    ]
    waits = f"{time.exposed_seconds:.4g} s waiting for messages, which take {time.message_seconds:.4g} s"
    held = "" if fleet.device_bytes is None else f" of {fleet.device_bytes / 1e9:.1f} GB"
    yield "strategy", f"{fleet.strategy} on {format_count(batch.num_ranks, 'rank')}"
    yield "batch", f"{batch.tokens_per_step:,} tokens per step: {' x '.join(factors)}"
    yield "step", f"{fleet.speed.step_seconds:.4g} s: {time.compute_seconds:.4g} s of computing, {waits}"
    yield (
        "speed",
        f"{fleet.tokens_per_second_per_device:,.0f} tokens/s per device, {fleet.speed.mfu_palm:.1%} MFU (PaLM's count)",
    )
    yield "memory", f"{fleet.memory.total / 1e9:.1f} GB{held} per device"


def _memory(fleet: SimulatedFleet) -> Table:
    phases = {phase: moment.to_json() for phase, moment in fleet.phases.items()}
    rows = [
        [f"  {kind.replace('_', ' ')}", *(f"{kinds[kind] / 1e9:,.2f} GB" for kinds in phases.values())]
        for kind in fleet.memory.to_json()
        if any(kinds[kind] >= 5e5 for kinds in phases.values())
    ]
    return columns(rows, head=["", *(PHASES[phase] for phase in phases)])


def _messages(messages: Sequence[Mapping[str, Any]]) -> Table:
    rows: list[list[str]] = []
    for each in messages:
        apart = f", {each['stride']} apart" if each["stride"] > 1 else ""
        group = f"{format_count(each['num_ranks'], 'rank')}{apart}"
        size = format_quantity(each["bytes"], "bytes")
        rows.append([f"  {KINDS[each['kind']]}", group, f"{each['num_messages']:,.0f}", size])
    return columns(rows, head=["", "group", "messages", "sent"])


def _table(fleets: Mapping[str, SimulatedFleet]) -> Table:
    rows = [
        [
            f"  {words}",
            f"{fleet.batch.num_ranks:,}",
            f"{fleet.speed.step_seconds:.3f} s",
            f"{fleet.time.exposed_seconds / fleet.time.seconds:.1%}",
            f"{fleet.tokens_per_second_per_device:,.0f}",
            f"{fleet.speed.mfu_palm:.1%}",
            Text(f"{fleet.memory.total / 1e9:,.1f} GB", style="bold red" if fleet.fits is False else ""),
        ]
        for words, fleet in fleets.items()
    ]
    heads = ("", "ranks", "step", "exposed", "tokens/s per device", "MFU", "memory")
    return columns(rows, head=heads)


def _problems(fleets: Sequence[SimulatedFleet]) -> list[RenderableType]:
    """Return a line for each fleet too large for its devices."""
    return [
        Text(
            f"\n{fleet.strategy} on {format_count(fleet.batch.num_ranks, 'rank')} does not fit: "
            f"{fleet.memory.total / 1e9:.1f} GB of {(fleet.device_bytes or 0) / 1e9:.1f} GB per device; "
            "`lmtrain plan` has advice.",
            style="bold red",
        )
        for fleet in fleets
        if fleet.fits is False
    ]
