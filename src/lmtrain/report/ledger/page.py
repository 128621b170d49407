"""The ledger of a run as people read it: a bar for each kind of time, then speed, utilization and money."""

import math
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.observed.plan_and_fact import UTILIZATION, PlanAndFact
from lmtrain.accounting.observed.speed_names import speed_name
from lmtrain.accounting.observed.time_accounts import COMPUTE, kind_words
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.ledger.run_ledger import RunLedger
from lmtrain.report.ledger.save_pauses import SavePauses
from lmtrain.report.ledger.slow_ranks import MOST_SHOWN, SlowRanks
from lmtrain.report.runs.speeds import speed_words
from lmtrain.report.show import plain_text, show

BAR_COLUMNS = 30


def print_ledger(ledger: RunLedger) -> None:
    """Print the page, in colour on a terminal."""
    show(page(ledger))


def text_of(ledger: RunLedger) -> str:
    """Return the page as plain text."""
    return plain_text(page(ledger))


def page(ledger: RunLedger) -> RenderableType:
    """Lay out the accounts."""
    return Group(Rule(Text(ledger.name, style="bold"), style="dim cyan"), _took(ledger), Text(""), *_body(ledger))


def _body(ledger: RunLedger) -> list[RenderableType]:
    parts: list[RenderableType] = [_time_table(ledger), Text(""), _facts_table(ledger)]
    if ledger.beside_plan is not None:
        parts += [Text(""), *_plan_beside_fact(ledger.beside_plan, trained_share=ledger.trained_share)]
    if ledger.by_rank is not None:
        parts += [Text(""), *_ranks(ledger.by_rank)]
    if ledger.biggest_lever:
        parts += [Text(""), Text.assemble(("biggest lever: ", "bold"), ledger.biggest_lever)]
    return parts


def _took(ledger: RunLedger) -> Text:
    attempts = format_count(ledger.time.num_attempts, "attempt")
    done = replace(ledger.steps, last=ledger.step)
    counted = [done.inherited_words]
    counted += [f"{format_quantity(done.tokens)} with loss" if done.trained_share < 1 else ""]
    told = f" ({', '.join(filter(None, counted))})" if any(counted) else ""
    return Text(
        f"{ledger.status.lower()}: step {ledger.step:,} of {ledger.num_steps:,}, "
        f"{format_quantity(done.inherited_tokens + done.all_tokens)} tokens{told}, {attempts}, "
        f"{format_quantity(ledger.time.wall_seconds, 'seconds')} on the clock"
    )


def _time_table(ledger: RunLedger) -> Table:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify)
    for kind in kinds_of_time(ledger):
        share = ledger.time.share(kind)
        bar = "█" * max(round(share * BAR_COLUMNS), int(share > 0))
        style = "bold cyan" if kind == COMPUTE else "dim"
        seconds = format_quantity(ledger.time.seconds[kind], "seconds")
        table.add_row(kind_words(kind), seconds, f"{share:.1%}", Text(bar, style=style))
    table.add_row("total", format_quantity(ledger.time.wall_seconds, "seconds"), "100.0%", "")
    return table


def kinds_of_time(ledger: RunLedger) -> list[str]:
    """Return the kinds of time in the page's order: computing, then the longest first."""
    seconds = ledger.time.seconds
    return sorted(seconds, key=lambda kind: (kind != COMPUTE, -seconds[kind]))


def _devices(ledger: RunLedger) -> str:
    if math.isclose(ledger.mean_devices, ledger.num_devices):
        return format_count(ledger.num_devices, "device")
    return f"{ledger.mean_devices:.3g} devices, the mean over its steps"


def _facts_table(ledger: RunLedger) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("goodput", f"{ledger.time.goodput:.1%} of the clock computed steps that count")
    speed = ledger.tokens_per_second
    if speed["computing"] is not None and speed["clock"] is not None:
        told = speed_words(speed, lambda value: format_quantity(round(value)), time=ledger.time)
        table.add_row(speed_name(ledger.trained_share), told)
    for formula in ("palm", "causal"):
        shares = {over: ledger.mfu(formula, over) for over in speed}
        if shares["computing"] is not None and shares["clock"] is not None:
            table.add_row(f"MFU ({formula})", speed_words(shares, "{:.1%}".format, time=ledger.time))
    if ledger.peak_flops is not None:
        table.add_row("peak", f"{ledger.peak_flops / 1e12:.4g} TFLOP/s x {_devices(ledger)} ({ledger.peak_source})")
    if ledger.share_of_roofline is not None and ledger.measured_flops != ledger.peak_flops:  # else MFU again
        reached = f"{ledger.share_of_roofline:.1%} of what a matrix product was measured to reach here"
        table.add_row("roofline", "; ".join(filter(None, (reached, ledger.measured_doubt))))
    _add_scaling(table, ledger)
    if ledger.trained_share < 1:
        share = f"{1 - ledger.trained_share:.1%} of the tokens computed: padding, prompts"
        table.add_row("without loss", f"{share}; speeds and MFU leave them out")
    _add_saves(table, ledger.saves)
    if ledger.sent is not None:
        counted, planned = ledger.sent.counted / 1e6, ledger.sent.planned / 1e6
        table.add_row("sent", f"{counted:,.2f} MB of deltas by the first worker, {planned:,.2f} planned")
    if ledger.usd is not None and ledger.projected_usd is not None:
        so_far, whole = (format_quantity(amount, "usd") for amount in (ledger.usd, ledger.projected_usd))
        table.add_row("cost", f"{so_far} so far, {whole} for the whole run")
    if ledger.kwh is not None and ledger.projected_kwh is not None:
        whole = f"{ledger.projected_kwh:,.3g} for the whole run, at the devices' rated power"
        table.add_row("energy", f"{ledger.kwh:,.3g} kWh so far, {whole}")
    return table


def _add_saves(table: Table, saves: SavePauses | None) -> None:
    """State both parts of training's pauses for checkpoints, and the writers' seconds."""
    if saves is not None:
        paused = f"{saves.copied:,.2f} s copying, {saves.waited:,.2f} s waiting for the one before"
        table.add_row("checkpoints", f"{saves.num_saves:,}: {paused}; {saves.written:,.2f} s to write")


def _add_scaling(table: Table, ledger: RunLedger) -> None:
    """State the share of a device's speed that several keep, where it was measured."""
    if ledger.scaling_efficiency is not None:
        alone = format_quantity(round(ledger.single_device_tokens_per_second or 0))
        table.add_row("scaling", f"{ledger.scaling_efficiency:.1%} of a device's {alone} tokens/s by itself")


def _ranks(found: SlowRanks) -> list[RenderableType]:
    """Set the slowest ranks beside the median, and name those the others wait for."""
    names = ", ".join(f"rank {one.rank} ({found.cause(one)})" for one in found.slow[:MOST_SHOWN])
    told = f"the others wait for {names}" if names else "all within 10% of the median"
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "right", "right", "right"):
        table.add_column(justify=justify)
    heads = ("", "own work a step", "of the median", "computing", "data wait", "waits for others")
    table.add_row(*heads, style="dim")
    for one in found.ranks[:MOST_SHOWN]:
        own = (one.own, one.computing, one.data_wait, one.waiting)
        whole, *rest = (format_quantity(seconds, "seconds") for seconds in own)
        table.add_row(f"rank {one.rank}", whole, f"{one.own / found.median:.2f}" if found.median else "", *rest)
    steps = format_count(found.num_steps, "traced step")
    return [Text.assemble((f"{format_count(len(found.ranks), 'rank')}: ", "bold"), told, (f" ({steps})", "dim")), table]


def _plan_beside_fact(found: PlanAndFact, *, trained_share: float) -> list[RenderableType]:
    """State the planned and the actual time of the steps done, and every reason for the difference."""
    planned, took = (format_quantity(seconds, "seconds") for seconds in (found.planned_seconds, found.seconds))
    by = f"at {found.planned_mfu:.0%} MFU, {found.mfu_source}"
    heading = Text.assemble(("plan beside fact: ", "bold"), f"{planned} planned ({by}), {took} on the clock")
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right"):
        table.add_column(justify=justify)
    for name, seconds, share in reasons(found, trained_share=trained_share):
        table.add_row(name, seconds, share)
    return [heading, table]


def reasons(found: PlanAndFact, *, trained_share: float) -> list[tuple[str, str, str]]:
    """Name each reason for the difference with its seconds and its share of the whole; the sum comes last.

    A plan computes all tokens; where a share of them has no loss, its utilization is of more than the run's own.
    """
    whole = found.difference_seconds
    rows = [*found.reasons.items(), ("difference", whole)]
    return [
        (_reason(name, found, trained_share), _signed(seconds), f"{seconds / whole:.1%}" if whole else "")
        for name, seconds in rows
    ]


def _reason(name: str, found: PlanAndFact, trained_share: float) -> str:
    if name == UTILIZATION:
        of_all = " of all tokens" if trained_share < 1 else ""
        of_peak = " by the plan's peak" if found.is_of_other_peak else ""
        return f"computing at {found.mfu:.1%} MFU{of_all}{of_peak}, not {found.planned_mfu:.1%}"
    return kind_words(name)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_quantity(abs(seconds), 'seconds')}"
