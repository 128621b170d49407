"""What to say about a plan: whether it is possible, and the nearest change that would make it so."""

from dataclasses import dataclass, replace

from lmtrain.accounting.fit import Setting, fewest_devices, fits, largest_micro_batch, memory_of
from lmtrain.accounting.plan import Plan
from lmtrain.accounting.quantities import format_quantity


@dataclass(frozen=True)
class Advice:
    """Lines for a person, and whether the run fits its devices and its budgets."""

    lines: tuple[str, ...]
    is_possible: bool


def advice(plan: Plan, setting: Setting, *, strategy: str, recompute: str) -> Advice:
    """Say what does not fit and what would, then what a budget of time leaves undone."""
    lines: list[str] = []
    if plan.fits is False:
        lines += _why_not(plan, setting, strategy=strategy, recompute=recompute)
    elif plan.fits:
        largest = largest_micro_batch(setting, plan.batch)
        if largest and largest.micro_batch_sequences > plan.batch.micro_batch_sequences:
            lines.append(f"a larger micro batch fits too: batch.micro_batch_sequences={largest.micro_batch_sequences}")
    unfinished = _unfinished(plan)
    return Advice(lines=(*lines, *unfinished), is_possible=plan.fits is not False and not unfinished)


def _why_not(plan: Plan, setting: Setting, *, strategy: str, recompute: str) -> list[str]:
    memory, device_bytes = memory_of(setting, plan.batch), plan.device_bytes or 0
    lines = [f"does not fit: {_gb(memory.total)} at the peak, {_gb(device_bytes)} on the device"]
    if smaller := largest_micro_batch(setting, plan.batch):
        return [*lines, f"fits with batch.micro_batch_sequences={smaller.micro_batch_sequences}"]
    if recompute == "none":
        lines.append("recompute=every_block keeps only what enters each block")
    sharded = replace(setting, is_sharded=True)
    one = replace(plan.batch, micro_batch_sequences=1, accumulation_micro_steps=plan.batch.sequences_per_rank)
    if strategy != "fsdp" and plan.batch.num_ranks > 1 and fits(sharded, one):
        lines.append("fits with strategy=fsdp batch.micro_batch_sequences=1")
    elif devices := fewest_devices(setting, plan.batch):
        lines.append(f"fits on {devices} devices with strategy=fsdp batch.micro_batch_sequences=1")
    else:
        lines.append("does not fit on any number of devices: one sequence's activations alone are too large")
    return lines


def _unfinished(plan: Plan) -> list[str]:
    """Tell where a budget of time ends the run before another budget is reached."""
    asked = plan.horizon.most_steps
    if plan.horizon.seconds is None or asked is None or asked <= plan.horizon.steps or plan.speed is None:
        return []
    factor = asked / plan.horizon.steps
    needed_hours = plan.speed.seconds(asked) / 3600
    return [
        f"does not finish: budget.{plan.horizon.limited_by} ends it after {plan.horizon.steps / asked:.0%} of the "
        f"{format_quantity(asked * plan.batch.tokens_per_step)} tokens",
        f"finishes in {needed_hours:.1f} hours, or with {factor:.1f} times the devices, "
        f"or in {format_quantity(plan.horizon.tokens)} tokens",
    ]


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
