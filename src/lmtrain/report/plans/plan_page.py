"""A plan as text: sections of names and values, amounts with their units, sources next to the figures."""

from rich.console import Group, RenderableType
from rich.text import Text

from lmtrain.accounting.budgets import SECONDS_PER_HOUR
from lmtrain.accounting.observed.time_accounts import kind_words
from lmtrain.accounting.quantities import format_count, format_days, format_quantity, format_ratio
from lmtrain.accounting.scaling_laws.compute_optimal import compute_optimum, ratio_words, trade_off, trade_off_lines
from lmtrain.accounting.training_plan.plan import Advice, Plan
from lmtrain.accounting.training_plan.plan_parts import FORWARD_SHARE, Cadence
from lmtrain.report.show import pairs, title_line

Rows = list[tuple[str, str]]


def page(plan: Plan, advice: Advice, *, title: str) -> RenderableType:
    """Lay out the plan; an unknown value names the setting that makes it known."""
    scaling = plan.scaling
    sections: list[tuple[str, Rows]] = [
        ("Model", _model(plan)),
        ("Run", _run(plan)),
        ("FLOPs", _flops(plan)),
        ("Memory of one device at the peak of a step", _memory(plan)),
        ("Time and money", _time(plan)),
        (f"Scaled by scaling={scaling.title}" if scaling else "", scaling.rows() if scaling else []),
        ("The whole run's FLOPs otherwise" if plan.done.steps else "The same FLOPs otherwise", _otherwise(plan)),
    ]
    parts: list[RenderableType] = [title_line(title)]
    for heading, rows in sections:
        if rows:
            parts += [Text(f"\n{heading}", style="bold"), pairs(rows)]
    style = "green" if advice.is_possible else "bold red"
    return Group(*parts, Text(""), *(Text(line, style=style) for line in advice.lines))


def _model(plan: Plan) -> Rows:
    shape = plan.shape
    rows = [("parameters", f"{shape.num_parameters:,} ({format_quantity(shape.num_parameters)})")]
    if shape.num_active_parameters != shape.num_parameters:
        rows.append(("active", f"{shape.num_active_parameters:,} of them for any one token"))
    if shape.num_frozen_parameters:
        trained = shape.num_parameters - shape.num_frozen_parameters
        rows.append(("trained", f"{trained:,} of them ({trained / shape.num_parameters:.2%}); the rest is frozen"))
    for part, count in sorted(plan.components.items(), key=lambda item: -item[1]):
        rows.append((f"  {part.replace('_', ' ')}", f"{count:,} ({count / shape.num_parameters:.1%})"))
    return rows


def _run(plan: Plan) -> Rows:
    batch = plan.batch
    size = batch.num_ranks // batch.num_data_ranks
    groups = ("device",) if size == 1 else (f"group of {size} devices", f"groups of {size} devices")
    factors = [
        format_count(batch.sequences_per_micro_step, "sequence"),
        format_count(batch.context_tokens, "token"),
        format_count(batch.accumulation_micro_steps, "micro-step"),
        format_count(batch.num_data_ranks, *groups),
    ]
    rows = [("tokens", _whole_run(plan)), ("tokens per step", f"{batch.tokens_per_step:,} = {' x '.join(factors)}")]
    if plan.is_from_scratch and plan.knows_its_end:
        shape = plan.shape
        numbers = {"num_parameters": shape.num_parameters, "num_active_parameters": shape.num_active_parameters}
        rows.append(("tokens/parameter", ratio_words(plan.horizon.tokens, **numbers)))
    if plan.epochs is not None and plan.knows_its_end:
        rows.append(("epochs", f"{format_ratio(plan.epochs)} over {format_quantity(plan.epoch_tokens or 0)} tokens"))
    if plan.awaits_data is not None:
        rows.append(("data", plan.awaits_data))
    if plan.source_epochs and plan.knows_its_end:
        each = (f"{name} {format_ratio(epochs)}" for name, epochs in plan.source_epochs.items())
        rows.append(("of each source", ", ".join(each)))
    return rows


def _whole_run(plan: Plan) -> str:
    """Return a run's tokens and steps: at most, where a budget of time may end it and no speed is known."""
    run, ahead, done = plan.horizon, plan.ahead, plan.done.steps
    if not plan.knows_its_end:
        return f"not known: budget.{run.limited_by} ends it, and no speed is known"
    whole = f"{format_quantity(run.tokens)} in {format_count(run.steps, 'step')}, by budget.{run.limited_by}"
    if done:
        rest = f"{format_quantity(ahead.tokens)} in {format_count(ahead.steps, 'step')}"
        whole = f"{whole}; {rest} ahead, after {done:,} done"
    return whole if run.time_limit is None or plan.speed else f"{whole}, unless budget.{run.time_limit} ends it before"


def _flops(plan: Plan) -> Rows:
    per_token, writing = plan.flops_per_token, plan.generation
    rows: Rows = []
    if plan.seen_tokens is not None:
        rows.append(("attention over", f"{plan.seen_tokens:,} tokens on average: documents are separate"))
    rows.append(
        ("per token", f"{per_token.palm:.4e} (PaLM), {per_token.causal:.4e} (causal), {per_token.six_n:.4e} (6N)")
    )
    if plan.knows_its_end:
        rows.append(("the steps ahead" if plan.done.steps else "the run", f"{plan.ahead.flops:.4e} (PaLM)"))
    if writing is not None:
        seconds = f", {_step_time(plan.generation_seconds_per_step)} at least" if plan.speed else ""
        answers = f"for up to {writing.written_tokens:,} tokens{seconds}"
        rows.append(("writing answers", f"{writing.flops_per_step:.4e} per step {answers}"))
    if plan.tokens_scored_ahead:
        scored = plan.tokens_scored_ahead * per_token.palm * FORWARD_SHARE
        rows.append(("reference", f"{scored:.4e} once, before the first step, for {plan.tokens_scored_ahead:,} tokens"))
    if (teacher := plan.teacher) is not None:
        rows.append(("teacher", f"{teacher.flops_per_step:.4e} per step, {_gb(teacher.weight_bytes)} on each device"))
    return rows


def _memory(plan: Plan) -> Rows:
    if plan.memory is None:
        return []
    kinds = plan.memory.to_json()
    total = kinds.pop("total")
    rows: Rows = []
    for kind, size in kinds.items():
        if size or kind in plan.memory.freed:
            rows.append((kind.replace("_", " "), _gb(size) if size else f"0 at the peak, {plan.memory.moment}"))
    if plan.offload is not None:
        rows.append(("host memory", f"{_gb(plan.offload.host_bytes)} of optimizer state, a piece of it here at a time"))
    device = "device memory not known" if plan.device_bytes is None else f"of {_gb(plan.device_bytes)}"
    return [*rows, ("total", f"{_gb(total)} {device}")]


def _time(plan: Plan) -> Rows:
    rows = _speed(plan)
    if plan.communication is not None and plan.communication.total_bytes:
        rows.append(("sent per step", _sent(plan)))
    if plan.hours is not None:
        price = "set cluster.usd_per_gpu_hour" if plan.usd is None else format_quantity(plan.usd, "usd")
        rows.append(("cost", price))
    if plan.checkpoints is not None:
        size, kept = plan.checkpoints.checkpoint_bytes, plan.checkpoints.kept_bytes
        rows.append(("checkpoint", f"{_gb(size)} each, {_gb(kept)} on disk"))
        rows += [] if plan.checkpoints.cadence is None else [("save every", _cadence(plan.checkpoints.cadence))]
    return rows


def _speed(plan: Plan) -> Rows:
    speed = plan.speed
    if speed is None or plan.hours is None:
        return [("step", f"not known: the peak of the device is {plan.peak_source}")]
    mfu, hfu = speed.mfu_palm, speed.hfu_palm or speed.mfu_palm
    share = f"{mfu:.0%} MFU" if hfu < mfu * 1.001 else f"{mfu:.0%} MFU, {hfu:.0%} HFU with recomputation"
    duration = format_quantity(plan.hours * 3600, "seconds")
    if plan.hours >= 1:
        duration = f"{format_ratio(plan.hours)} hours ({format_days(plan.hours / 24)})"
    where = "within it" if plan.horizon.is_of_time else "on top"
    rest = f"; start-up and checkpoints {where}"
    whole = plan.hours * SECONDS_PER_HOUR
    shares = [f"{kind_words(kind)} {seconds / whole:.1%}" for kind, seconds in plan.accounts.items()]
    return [
        ("step", f"{_step_time(speed.step_seconds)} at {share} ({speed.source})"),
        ("peak", f"{(plan.peak_flops or 0) / 1e12:.4g} TFLOP/s x {plan.batch.num_ranks} ({plan.peak_source})"),
        ("speed", f"{format_quantity(round(plan.batch.tokens_per_step / speed.step_seconds))} tokens/s"),
        ("time", f"{duration}{rest}"),
        *([("of it", ", ".join(shares))] if len(shares) > 1 else []),
    ]


def _cadence(cadence: Cadence) -> str:
    """Return the best interval between checkpoints, and the figures behind it."""
    every, between = (
        format_quantity(seconds, "seconds") for seconds in (cadence.every_seconds, cadence.seconds_between_failures)
    )
    return (
        f"{every} (callbacks.checkpoint.every_seconds={round(cadence.every_seconds)}) for one failure in {between}; "
        f"loses {cadence.lost_share:.1%}"
    )


def _sent(plan: Plan) -> str:
    assert plan.communication is not None
    sent = plan.communication
    took = "at a rate that is not known" if sent.seconds is None else f"{format_ratio(sent.seconds)} s of link time"
    parts = [f"{_gb(round(each.num_bytes))} in {each.group} of {each.num_ranks}" for each in sent.groups]
    by_group = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"{_gb(sent.total_bytes)} from each device{by_group}, {took}"


def _otherwise(plan: Plan) -> Rows:
    """Return the compute-optimal model for the run's FLOPs, and smaller and larger ones on the tokens left for them."""
    if not (plan.is_from_scratch and plan.knows_its_end and plan.ahead.steps):
        return []
    num_parameters, tokens = compute_optimum(plan.horizon.flops)
    best = f"{format_quantity(num_parameters)} parameters on {format_quantity(tokens)} tokens"
    return [("compute-optimal", best), *(("", line) for line in trade_off_lines(trade_off(plan.horizon.flops)))]


def _step_time(seconds: float) -> str:
    return f"{format_ratio(seconds)} s" if seconds >= 0.01 else f"{format_ratio(1000 * seconds)} ms"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.3f} GB" if num_bytes < 1e9 else f"{num_bytes / 1e9:,.1f} GB"
