"""The ledger as people read it: a bar per kind of time, then speed, utilization, money, ranks, and plan and fact."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.observed.metric_names import speed_name
from lmtrain.accounting.observed.plan_vs_actual import UTILIZATION, PlanAndFact
from lmtrain.accounting.observed.time_accounts import COMPUTE, kind_words
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.ledger import FORMULAS, MOST_RANKS, RunLedger, SlowRanks
from lmtrain.report.runs.attempts import speed_words
from lmtrain.report.show import plain_text, show

BAR_COLUMNS: Final = 30


def print_ledger(ledger: RunLedger) -> None:
    """Print the page, in colour on a terminal."""
    show(page(ledger))


def text_of(ledger: RunLedger) -> str:
    """Return the page as plain text."""
    return plain_text(page(ledger))


def page(ledger: RunLedger) -> RenderableType:
    """Lay out the accounts."""
    parts: list[RenderableType] = [Rule(Text(ledger.name, style="bold"), style="dim cyan"), _took(ledger), Text("")]
    parts += [_time_table(ledger), Text(""), _facts_table(ledger)]
    if ledger.beside_plan is not None:
        parts += [Text(""), *_plan_and_fact(ledger.beside_plan, trained_share=ledger.trained_share)]
    if ledger.by_rank is not None:
        parts += [Text(""), *_ranks(ledger.by_rank)]
    if ledger.biggest_lever:
        parts += [Text(""), Text.assemble(("biggest lever: ", "bold"), ledger.biggest_lever)]
    return Group(*parts)


def _grid(*justify: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for each in justify:
        table.add_column(justify=each)  # pyright: ignore[reportArgumentType]
    return table


def _took(ledger: RunLedger) -> Text:
    done = replace(ledger.steps, last=ledger.step)
    of_loss = f"{format_quantity(done.tokens)} with loss" if done.trained_share < 1 else ""
    counted = ", ".join(filter(None, (done.inherited_words, of_loss)))
    return Text(
        f"{ledger.status.lower()}: step {ledger.step:,} of {ledger.num_steps:,}, "
        f"{format_quantity(done.inherited_tokens + done.all_tokens)} tokens{f' ({counted})' if counted else ''}, "
        f"{format_count(ledger.time.num_attempts, 'attempt')}, "
        f"{format_quantity(ledger.time.wall_seconds, 'seconds')} on the clock"
    )


def kinds_of_time(ledger: RunLedger) -> list[str]:
    """Return the kinds of time in the page's order: computing, then the longest first."""
    seconds = ledger.time.seconds
    return sorted(seconds, key=lambda kind: (kind != COMPUTE, -seconds[kind]))


def _time_table(ledger: RunLedger) -> Table:
    table = _grid("left", "right", "right", "left")
    for kind in kinds_of_time(ledger):
        share = ledger.time.share(kind)
        bar = "█" * max(round(share * BAR_COLUMNS), int(share > 0))
        seconds = format_quantity(ledger.time.seconds[kind], "seconds")
        table.add_row(
            kind_words(kind), seconds, f"{share:.1%}", Text(bar, style="bold cyan" if kind == COMPUTE else "dim")
        )
    table.add_row("total", format_quantity(ledger.time.wall_seconds, "seconds"), "100.0%", "")
    return table


def _facts_table(ledger: RunLedger) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("goodput", f"{ledger.time.goodput:.1%} of the clock computed steps that count")
    for name, words in [*_speed_rows(ledger), *_peak_rows(ledger), *_cost_rows(ledger)]:
        table.add_row(name, words)
    return table


def _speed_rows(ledger: RunLedger) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    speed = ledger.tokens_per_second
    if speed["computing"] is not None and speed["clock"] is not None:
        words = speed_words(speed, lambda value: format_quantity(round(value)), time=ledger.time)
        rows.append((speed_name(ledger.trained_share), words))
    for formula in FORMULAS:
        shares = {over: ledger.mfu(formula, over) for over in speed}
        if shares["computing"] is not None and shares["clock"] is not None:
            rows.append((f"MFU ({formula})", speed_words(shares, "{:.1%}".format, time=ledger.time)))
    return rows


def _peak_rows(ledger: RunLedger) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if ledger.peak_flops is not None:
        devices = f"{ledger.mean_devices:.3g} devices, the mean over its steps"
        if math.isclose(ledger.mean_devices, ledger.num_devices):
            devices = format_count(ledger.num_devices, "device")
        rows.append(("peak", f"{ledger.peak_flops / 1e12:.4g} TFLOP/s x {devices} ({ledger.peak_source})"))
    if ledger.share_of_roofline is not None and ledger.measured_flops != ledger.peak_flops:  # else MFU again
        reached = f"{ledger.share_of_roofline:.1%} of what a matrix product was measured to reach here"
        rows.append(("roofline", "; ".join(filter(None, (reached, ledger.measured_doubt)))))
    if ledger.scaling_efficiency is not None:
        alone = format_quantity(round(ledger.single_device_tokens_per_second or 0))
        rows.append(("scaling", f"{ledger.scaling_efficiency:.1%} of a single device's {alone} tokens/s"))
    if ledger.trained_share < 1:
        share = f"{1 - ledger.trained_share:.1%} of the tokens computed: padding, prompts"
        rows.append(("without loss", f"{share}; speeds and MFU leave them out"))
    return rows


def _cost_rows(ledger: RunLedger) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if (saves := ledger.saves) is not None:
        paused = f"{saves.copied:,.2f} s copying, {saves.waited:,.2f} s waiting for the one before"
        rows.append(("checkpoints", f"{saves.num_saves:,}: {paused}; {saves.written:,.2f} s to write"))
    if ledger.sent is not None:
        counted, planned = ledger.sent.counted / 1e6, ledger.sent.planned / 1e6
        rows.append(("sent", f"{counted:,.2f} MB of deltas by the first worker, {planned:,.2f} planned"))
    if ledger.usd is not None and ledger.projected_usd is not None:
        so_far, whole = (format_quantity(amount, "usd") for amount in (ledger.usd, ledger.projected_usd))
        rows.append(("cost", f"{so_far} so far, {whole} for the whole run"))
    if ledger.kwh is not None and ledger.projected_kwh is not None:
        whole = f"{ledger.projected_kwh:,.3g} for the whole run, at the devices' rated power"
        rows.append(("energy", f"{ledger.kwh:,.3g} kWh so far, {whole}"))
    return rows


def _ranks(found: SlowRanks) -> list[RenderableType]:
    """Compare the slowest ranks with the median, and name those the others wait for."""
    words = f"the others wait for {found.slow_words}" if found.slow else "all within 10% of the median"
    table = _grid("left", "right", "right", "right", "right", "right")
    heads = ("", "own work a step", "of the median", "computing", "data wait", "waits for others")
    table.add_row(*heads, style="dim")
    for one in found.ranks[:MOST_RANKS]:
        own = (one.own, one.computing, one.data_wait, one.waiting)
        whole, *rest = (format_quantity(seconds, "seconds") for seconds in own)
        table.add_row(f"rank {one.rank}", whole, f"{one.own / found.median:.2f}" if found.median else "", *rest)
    steps = format_count(found.num_steps, "traced step")
    title = f"{format_count(len(found.ranks), 'rank')}: "
    return [Text.assemble((title, "bold"), words, (f" ({steps})", "dim")), table]


def _plan_and_fact(found: PlanAndFact, *, trained_share: float) -> list[RenderableType]:
    """Show the planned and the actual time of the steps done, and every reason for the difference."""
    planned, took = (format_quantity(seconds, "seconds") for seconds in (found.planned_seconds, found.seconds))
    by = f"at {found.planned_mfu:.0%} MFU, {found.mfu_source}"
    heading = Text.assemble(("plan and fact: ", "bold"), f"{planned} planned ({by}), {took} on the clock")
    table = _grid("left", "right", "right")
    for row in reasons(found, trained_share=trained_share):
        table.add_row(*row)
    return [heading, table]


def reasons(found: PlanAndFact, *, trained_share: float) -> Sequence[tuple[str, str, str]]:
    """Return each reason for the difference with its seconds and its share; the sum comes last.

    A plan computes all tokens; if a share of them has no loss, its utilization is of more than the run's own.
    """
    whole = found.difference_seconds

    def name_of(reason: str) -> str:
        if reason != UTILIZATION:
            return kind_words(reason)
        of_all = " of all tokens" if trained_share < 1 else ""
        of_peak = " by the plan's peak" if found.is_of_other_peak else ""
        return f"computing at {found.mfu:.1%} MFU{of_all}{of_peak}, not {found.planned_mfu:.1%}"

    return [
        (
            name_of(reason),
            f"{'-' if seconds < 0 else '+'}{format_quantity(abs(seconds), 'seconds')}",
            f"{seconds / whole:.1%}" if whole else "",
        )
        for reason, seconds in [*found.reasons.items(), ("difference", whole)]
    ]
