"""What to say about a plan: whether it is possible, and the nearest change that would make it so."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lmtrain.accounting.quantities import format_at_most, format_quantity
from lmtrain.accounting.training_plan.fit import Setting, fewest_devices, largest_micro_batch, memory_of
from lmtrain.accounting.training_plan.plan import Plan

EVERY_BLOCK: Final = "recompute=every_block "


@dataclass(frozen=True)
class Advice:
    """Lines for a person, and whether the run fits its devices and its budgets."""

    lines: tuple[str, ...]
    is_possible: bool


Sharded = Callable[[], Sequence[tuple[str, Setting]]]


def advice(
    plan: Plan,
    setting: Setting,
    *,
    recomputes: bool,
    recomputed: Setting | None = None,
    sharded: Sharded | None = None,
) -> Advice:
    """Say what does not fit and what would, then what a budget of time leaves undone.

    `recomputed` is the setting under recompute=every_block, None where that is not known without measuring. `sharded`
    gives the settings under strategy=fsdp, each with the words that it takes beside; None takes those at hand, whose
    activations are those of a model that is not sharded.
    """
    lines: list[str] = []
    if plan.fits is False:
        lines += _why_not(plan, setting, recomputes=recomputes, recomputed=recomputed, sharded=sharded)
    elif plan.fits:
        largest = largest_micro_batch(setting, plan.batch)
        if largest and largest.micro_batch_sequences > plan.batch.micro_batch_sequences:
            lines.append(f"a larger micro batch fits too: batch.micro_batch_sequences={largest.micro_batch_sequences}")
    unfinished = _unfinished(plan)
    return Advice(lines=(*lines, *unfinished), is_possible=plan.fits is not False and not unfinished)


def _why_not(
    plan: Plan, setting: Setting, *, recomputes: bool, recomputed: Setting | None, sharded: Sharded | None
) -> list[str]:
    memory, device_bytes = memory_of(setting, plan.batch), plan.device_bytes or 0
    lines = [f"does not fit: {_gb(memory.total)} at the peak, {_gb(device_bytes)} on the device"]
    if smaller := largest_micro_batch(setting, plan.batch):
        lines.append(f"fits with batch.micro_batch_sequences={smaller.micro_batch_sequences}")
    if recomputed and (largest := largest_micro_batch(recomputed, plan.batch)):
        lines.append(f"fits with recompute=every_block batch.micro_batch_sequences={largest.micro_batch_sequences}")
    elif not recomputes and recomputed is None:
        lines.append("recompute=every_block keeps only what enters each block")
    if smaller:
        return lines
    at_hand = [(word, tried) for word, tried in (("", setting), (EVERY_BLOCK, recomputed)) if tried is not None]
    return [*lines, *_sharded(plan, setting, sharded() if sharded else at_hand)]


def _sharded(plan: Plan, setting: Setting, sharded: Sequence[tuple[str, Setting]]) -> list[str]:
    """Say on how many devices the model fits in shards, as it is and with recomputation."""
    lines: list[str] = []
    for word, tried in sharded:
        largest = largest_micro_batch(replace(tried, is_sharded=True, most_shards=None), plan.batch)
        if largest and (not setting.is_sharded or setting.most_shards) and plan.batch.num_ranks > 1:
            lines.append(f"fits with strategy=fsdp {word}batch.micro_batch_sequences={largest.micro_batch_sequences}")
        elif devices := fewest_devices(tried, plan.batch):
            lines.append(f"fits on {devices:,} devices with strategy=fsdp {word}batch.micro_batch_sequences=1")
    return lines or ["does not fit on any number of devices: one sequence's activations alone are too large"]


def _unfinished(plan: Plan) -> list[str]:
    """Tell where a budget of time ends the run before another budget is reached, and what would let it finish."""
    run, asked = plan.horizon, plan.horizon.most_steps
    if run.seconds is None or asked is None or asked <= run.steps or plan.speed is None:
        return []
    hours = plan.speed.seconds(asked) / 3600
    fewer = f"budget.tokens={format_at_most(run.tokens)}"
    if run.limited_by == "usd":  # more devices cost as much for less long
        usd = math.ceil(hours * plan.batch.num_ranks * (plan.usd_per_gpu_hour or 0))
        fix = f"finishes with budget.usd={usd}, or with {fewer}"
    else:
        devices = math.ceil(plan.batch.num_ranks * asked / run.steps)
        fix = (
            f"finishes with budget.hours={math.ceil(hours * 100) / 100:g}, or with {devices:,} devices, or with {fewer}"
        )
    return [
        f"does not finish: budget.{run.limited_by} ends it after {run.steps / asked:.0%} of the "
        f"{format_quantity(asked * plan.batch.tokens_per_step)} tokens",
        fix,
    ]


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
