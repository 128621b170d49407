"""The ledger as people read it: a bar per kind of time, then speed, utilization, money, ranks, and plan and fact."""

from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.observed.metric_names import ANSWER_TOKENS, TAUGHT_TOKENS, speed_name
from lmtrain.accounting.observed.time_accounts import COMPUTE, kind_words
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.ledger import FORMULAS, MOST_RANKS, UTILIZATION, PlanAndFact, RunLedger, SlowRanks
from lmtrain.report.runs.attempts import speed_words
from lmtrain.report.runs.facts import base_run
from lmtrain.report.show import columns, pairs

BAR_COLUMNS: Final = 30


def page(ledger: RunLedger) -> RenderableType:
    """Lay out the accounts."""
    parts: list[RenderableType] = [Rule(Text(ledger.folder.name, style="bold"), style="dim cyan"), _took(ledger)]
    parts += [Text(""), _time_table(ledger), Text(""), pairs(fact_rows(ledger), width=0)]
    if (found := ledger.beside_plan) is not None:
        planned, took = (format_quantity(seconds, "seconds") for seconds in (found.planned_seconds, found.seconds))
        words = f"{planned} planned (at {found.planned_mfu:.0%} MFU, {found.mfu_source}), {took} on the clock"
        heading = Text.assemble(("plan and fact: ", "bold"), words)
        parts += [Text(""), heading, columns(reasons(found, trained_share=ledger.own.trained_share))]
    if ledger.by_rank is not None:
        parts += [Text(""), *_ranks(ledger.by_rank)]
    if ledger.biggest_lever:
        parts += [Text(""), Text.assemble(("biggest lever: ", "bold"), ledger.biggest_lever)]
    return Group(*parts)


def _took(ledger: RunLedger) -> Text:
    own = ledger.own
    of_loss = f"{format_quantity(own.tokens)} with loss" if own.trained_share < 1 else ""
    counted = ", ".join(filter(None, (own.inherited_words, of_loss)))
    return Text(
        f"{ledger.shown_status.lower()}: step {ledger.step:,} of {ledger.num_steps:,}, "
        f"{format_quantity(ledger.tokens)} tokens{f' ({counted})' if counted else ''}, "
        f"{format_count(ledger.time.num_attempts, 'attempt')}, "
        f"{format_quantity(ledger.time.wall_seconds, 'seconds')} on the clock"
    )


def kinds_of_time(ledger: RunLedger) -> list[str]:
    """Return the kinds of time in the page's order: computing, then the longest first."""
    seconds = ledger.time.seconds
    return sorted(seconds, key=lambda kind: (kind != COMPUTE, -seconds[kind]))


def _time_table(ledger: RunLedger) -> Table:
    rows: list[tuple[RenderableType, ...]] = []
    for kind in kinds_of_time(ledger):
        share, seconds = ledger.time.share(kind), format_quantity(ledger.time.seconds[kind], "seconds")
        bar, style = "█" * max(round(share * BAR_COLUMNS), int(share > 0)), "cyan" if kind == COMPUTE else "dim"
        rows.append(
            (kind_words(kind), seconds, *_usd(ledger, share), f"{share:.1%}", Text(bar, style=style, justify="left"))
        )
    total = format_quantity(ledger.time.wall_seconds, "seconds")
    return columns([*rows, ("total", total, *_usd(ledger, 1.0), "100.0%")])


def _usd(ledger: RunLedger, share: float) -> list[str]:
    """Return what a share of the clock cost, nothing without a price."""
    return [] if ledger.usd is None else [format_quantity(ledger.usd * share, "usd")]


def fact_rows(ledger: RunLedger) -> list[tuple[str, str]]:
    """Return the known facts by name: goodput, speeds, peak, money."""
    rows = [("goodput", f"{ledger.time.goodput:.1%} of the clock computed steps that count")]
    if words := speed_words(ledger.speeds, lambda value: format_quantity(round(value))):
        rows.append((speed_name(ledger.own.trained_share), words))
    utilization = {formula: {over: ledger.mfu(formula, over) for over in ledger.speeds} for formula in FORMULAS}
    mfu = {formula: speed_words(shares, "{:.1%}".format) for formula, shares in utilization.items()}
    rows += [(f"MFU ({formula})", words) for formula, words in mfu.items() if words]
    if (flops := ledger.own.flops) is not None:
        rows.append(("FLOPs", f"{flops:.4g}, by the documents and windows of the batches"))
    peak = ledger.plan.get("peak", {})
    if peak.get("flops") is not None:
        devices = f"{ledger.mean_devices:.3g} device{'s' * (ledger.mean_devices != 1)}"
        rows.append(("peak", f"{peak['flops'] / 1e12:.4g} TFLOP/s x {devices} ({peak.get('source', 'unknown')})"))
    if ledger.own.trained_share < 1:
        share = f"{1 - ledger.own.trained_share:.1%} of the tokens computed: padding, prompts"
        rows.append(("without loss", f"{share}; speeds and MFU but the batch's leave them out"))
    written, taught = (sum(p.metrics.get(name, 0.0) for p in ledger.points) for name in (ANSWER_TOKENS, TAUGHT_TOKENS))
    if written:
        rows.append(
            ("answers", f"{taught / written:.1%} of their tokens in groups with different rewards: these teach")
        )
    if teacher := ledger.plan.get("teacher"):
        rows.append(("teacher", f"{teacher['flops_per_step'] * ledger.own.num:.4g} FLOPs more, of its forward passes"))
    projected = ledger.usd_of(ledger.projected_device_seconds)
    if ledger.usd is not None and projected is not None:
        so_far, whole = (format_quantity(amount, "usd") for amount in (ledger.usd, projected))
        rows.append(("cost", f"{so_far} so far, {whole} for the whole run"))
    if base := base_run(ledger.job.get("config", {}).get("init_from")):
        rows.append(("of its start", base.words_of_share(ledger.device_seconds, ledger.usd)))
    return rows


def _ranks(found: SlowRanks) -> list[RenderableType]:
    """Compare the slowest ranks with the median, and name those the others wait for."""
    words = f"the others wait for {found.slow_words}" if found.slow else "all within 10% of the median"
    head = ("", "own work a step", "computing", "data wait", "waits for others")
    rows = [
        (f"rank {one.rank}", *(format_quantity(each, "seconds") for each in parts))
        for one in found.ranks[:MOST_RANKS]
        for parts in [(one.own, one.computing, one.data_wait, one.waiting)]
    ]
    steps, title = format_count(found.num_steps, "traced step"), f"{format_count(len(found.ranks), 'rank')}: "
    return [Text.assemble((title, "bold"), words, (f" ({steps})", "dim")), columns(rows, head=head)]


def reasons(found: PlanAndFact, *, trained_share: float) -> list[tuple[str, str, str]]:
    """Return each reason for the difference with its seconds and its share; the sum comes last.

    A plan computes all tokens; if a share of them has no loss, its utilization is of more than the run's own.
    """
    whole, of_all = found.difference_seconds, " of all tokens" if trained_share < 1 else ""
    computing = f"computing at {found.mfu:.1%} MFU{of_all}, not {found.planned_mfu:.1%}"
    return [
        (
            computing if reason == UTILIZATION else kind_words(reason),
            f"{'-' if seconds < 0 else '+'}{format_quantity(abs(seconds), 'seconds')}",
            f"{seconds / whole:.1%}" if whole else "",
        )
        for reason, seconds in [*found.reasons.items(), ("difference", whole)]
    ]
