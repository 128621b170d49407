"""A solved fleet as text: every term with its unit, the computed ones marked."""

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.fleets.fleet_plan import STATIC_BYTES_PER_PARAMETER, FleetPlan
from lmtrain.accounting.quantities import format_at_most, format_quantity
from lmtrain.report.show import plain_text, show

Rows = list[tuple[str, str, str]]


def print_fleet(plan: FleetPlan) -> None:
    """Print the page, in colour on a terminal."""
    show(page(plan))


def text_of(plan: FleetPlan) -> str:
    """Return the page as plain text."""
    return plain_text(page(plan))


def page(plan: FleetPlan) -> RenderableType:
    """Lay out the terms, then their consequences, then every failure to fit or finish."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", min_width=16)
    table.add_column()
    for name, value, term in [*_terms(plan), *_consequences(plan)]:
        is_found = term in plan.found
        text = Text(value, style="bold cyan" if is_found else "")
        table.add_row(f"  {name}", text.append("  <- computed", style="dim") if is_found else text)
    others = [
        f"  {format_quantity(choice.num_parameters)} on {format_quantity(choice.tokens)}: "
        f"{choice.tokens_per_parameter:.3g} a parameter, {choice.loss_words}"
        for choice in plan.trade_offs
    ]
    problems = [Text(line, style="bold red") for line in plan.problems]
    return Group(
        Rule(Text(plan.model or "fleet", style="bold"), style="dim cyan"),
        table,
        Text("\nThe same FLOPs on other sizes", style="bold"),
        Text("\n".join(others)),
        *([Text(""), *problems] if problems else []),
    )


def _terms(plan: FleetPlan) -> Rows:
    run = plan.run
    tokens, devices, hours = run.tokens or 0, run.num_devices or 0, run.hours or 0
    mfu_source = " (assumed; fleet.mfu states another)" if plan.mfu_is_assumed else ""
    formula = (
        "6 x parameters a token"
        if run.flops_per_token is None
        else f"{run.flops_per_token:.4e} a token, PaLM's count at {plan.context_tokens} tokens of context"
    )
    return [
        ("model", f"{format_quantity(plan.num_parameters)} parameters{_exact(plan)}", "num_parameters"),
        (
            "tokens",
            f"{format_quantity(tokens)}, {tokens / plan.num_parameters:.3g} a parameter (20 is compute-optimal)",
            "tokens",
        ),
        ("FLOPs", f"{plan.flops:.4e} ({formula})", ""),
        ("devices", f"{devices:,.0f} x {run.peak_flops / 1e12:,.1f} TFLOP/s ({plan.peak_source})", "num_devices"),
        ("MFU", f"{run.mfu:.1%}{mfu_source}", "mfu"),
        ("time", f"{hours / 24:,.2f} days, {hours:,.1f} hours", "hours"),
        ("cost", _cost(plan), "" if run.usd is None else "usd"),
    ]


def _exact(plan: FleetPlan) -> str:
    return f" ({plan.num_parameters:,.0f})" if plan.model else ""


def _cost(plan: FleetPlan) -> str:
    if plan.run.usd is None:
        return "set fleet.usd_per_gpu_hour"
    return f"${plan.run.usd:,.2f} at ${plan.run.usd_per_gpu_hour:,.2f} a device and hour"


def _consequences(plan: FleetPlan) -> Rows:
    rows: Rows = [
        (
            "memory",
            f"{plan.static_bytes / 1e9:,.1f} GB sharded, at {STATIC_BYTES_PER_PARAMETER} bytes a parameter before "
            "activations",
            "",
        )
    ]
    if plan.fewest_devices is not None and plan.most_parameters is not None:
        most = format_at_most(plan.most_parameters)
        fewest = f"{plan.fewest_devices:,} device{'s' * (plan.fewest_devices > 1)}"
        rows.append(("", f"at least {fewest}; these hold up to {most} parameters", ""))
    if plan.kwh is not None:
        rows.append(("energy", f"at most {plan.kwh:,.0f} kWh by the devices' rated power", ""))
    return rows
