"""A plan as a function of one of its terms: the curves and bars of the page, as plain numbers."""

from collections.abc import Mapping
from typing import Any, Final

from lmtrain.accounting.model.memory import state_bytes
from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.accounting.scaling_laws.compute_optimal import compute_optimum, trade_off
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.accounting.training_plan.setting import Setting

FACTORS: Final = tuple(2 ** (exponent / 4) for exponent in range(-12, 13))  # from an eighth to eight times
DEVICE_FACTORS: Final = (0.25, 0.5, 1, 2, 4)


def charts(plan: Plan, setting: Setting, optimizers: Mapping[str, OptimizerState]) -> dict[str, Any]:
    """Return the numbers behind every chart of the page; `optimizers` are those to compare, by name."""
    return {
        "days_by_devices": days_by_devices(plan),
        "optimizers": optimizer_bytes(setting, optimizers, num_shards=setting.num_shards(plan.batch.num_ranks)),
        "trade_off": trade_offs(
            plan.horizon.flops, num_parameters=plan.shape.num_active_parameters, tokens=plan.horizon.tokens
        ),
    }


def days_by_devices(plan: Plan) -> list[dict[str, float]]:
    """Return the days of the run on fewer and more devices, at the same utilization of each."""
    hours, devices = plan.hours, plan.batch.num_ranks
    if hours is None:
        return []
    counts = sorted({max(1, round(devices * factor)) for factor in DEVICE_FACTORS})
    return [{"num_devices": count, "days": hours / 24 * devices / count} for count in counts]


def optimizer_bytes(
    setting: Setting, optimizers: Mapping[str, OptimizerState], *, num_shards: int
) -> list[dict[str, Any]]:
    """Return each optimizer's bytes on a device, the least first."""
    parameters = setting.facts.parameters
    found = [
        {"name": name, "bytes": state_bytes(parameters, precision=setting.bytes_of, optimizer=state) / num_shards}
        for name, state in optimizers.items()
    ]
    return sorted(found, key=lambda row: row["bytes"])


def trade_offs(flops: float, *, num_parameters: float, tokens: float) -> dict[str, Any]:
    """Return the loss of other sizes with the FLOPs of a run, and the places of the run and the optimum."""
    choices = trade_off(flops, factors=FACTORS)
    optimum = compute_optimum(flops)
    return {
        "curve": [{"num_parameters": each.num_parameters, "loss": each.predicted_loss} for each in choices],
        "optimum": {"num_parameters": optimum.num_parameters, "tokens": optimum.tokens},
        "run": {"num_parameters": num_parameters, "tokens": tokens},
    }
