"""A solved fleet as text: every term with its unit, the computed ones marked."""

from rich.console import Group, RenderableType
from rich.text import Text

from lmtrain.accounting.fleet import FleetPlan
from lmtrain.accounting.quantities import (
    format_at_most,
    format_count,
    format_days,
    format_quantity,
    format_ratio,
)
from lmtrain.accounting.scaling_laws.compute_optimal import ratio_words, trade_off_lines
from lmtrain.report.show import pairs, title_line


def page(plan: FleetPlan) -> RenderableType:
    """Lay out the terms, then their consequences, then a failure to fit."""
    terms = [(name, _marked(value, is_found=term in plan.found)) for name, value, term in _terms(plan)]
    return Group(
        title_line(plan.model or "fleet"),
        pairs([*terms, *_consequences(plan)], width=16),
        Text("\nFLOPs = devices x hours x 3600 x FLOP/s of the peak x MFU", style="dim"),
        Text("\nThe same FLOPs on other sizes", style="bold"),
        Text("\n".join(f"  {line}" for line in trade_off_lines(plan.trade_offs))),
        *(Text(f"\n{line}", style="bold red") for line in plan.problems),
    )


def _marked(value: str, *, is_found: bool) -> Text:
    return Text(value, style="bold cyan").append("  <- computed", style="dim") if is_found else Text(value)


def _terms(plan: FleetPlan) -> list[tuple[str, str, str]]:
    """Return each term's title, value and name."""
    run = plan.run
    ratio = ratio_words(
        run.tokens or 0, num_parameters=plan.num_parameters, num_active_parameters=plan.num_active_parameters
    )
    formula = "6 x parameters per token, arXiv 2001.08361"
    if run.flops_per_token is not None:
        formula = f"{run.flops_per_token:.4e} per token, PaLM's count at {plan.context_tokens} tokens of context"
    devices = "any number" if run.num_devices is None else f"{run.num_devices:,.0f}"
    time = "set fleet.num_devices or fleet.days"
    if run.hours is not None:
        time = f"{format_days(run.hours / 24)} ({format_ratio(run.hours)} hours)"
    exact = f" ({plan.num_parameters:,.0f})" if plan.model else ""
    mfu = " (assumed; fleet.mfu states another)" if plan.mfu_is_assumed else ""
    return [
        ("model", f"{format_quantity(plan.num_parameters)} parameters{exact}", "num_parameters"),
        ("tokens", f"{format_quantity(run.tokens or 0)}, {ratio}", "tokens"),
        ("FLOPs", f"{plan.flops:.4e} ({formula})", "flops"),
        ("devices", f"{devices} x {run.peak_flops / 1e12:,.1f} TFLOP/s ({plan.peak_source})", "num_devices"),
        ("MFU", f"{run.mfu:.1%}{mfu}", "mfu"),
        ("time", time, "hours"),
        ("device hours", f"{run.device_hours or 0:,.0f}", "device_hours"),
        ("cost", _cost(plan), "" if run.usd is None else "usd"),
    ]


def _cost(plan: FleetPlan) -> str:
    if plan.run.usd is None:
        return "set fleet.usd_per_gpu_hour"
    price = format_quantity(plan.run.usd_per_gpu_hour or 0, "usd")
    return f"{format_quantity(plan.run.usd, 'usd')} at {price} per device and hour"


def _consequences(plan: FleetPlan) -> list[tuple[str, str]]:
    each = f"{plan.bytes_per_parameter:g} bytes per parameter before activations"
    formats = f": weights, gradients and AdamW's moments of precision={plan.precision}" if plan.precision else ""
    rows = [("memory", f"{plan.static_bytes / 1e9:,.1f} GB sharded, {each}{formats}")]
    if plan.fewest_devices is not None:
        most = f"; these hold up to {format_at_most(plan.most_parameters)} parameters" if plan.most_parameters else ""
        rows.append(("", f"at least {format_count(plan.fewest_devices, 'device')}{most}"))
    return rows
