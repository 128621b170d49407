"""One equation of a training run, solved for whichever of its terms is missing.

    FLOPs per token x tokens = devices x peak x utilization x seconds

With 6 N FLOPs per token where only the number of parameters is known. Dollars and energy follow from device hours.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lmtrain.accounting.quantities import format_at_least, format_at_most
from lmtrain.accounting.scaling_laws.compute_optimal import TOKENS_PER_PARAMETER, compute_optimum
from lmtrain.errors import ConfigurationError

SECONDS_PER_HOUR: Final = 3600.0
ASSUMED_MFU: Final = 0.4  # what well-tuned loops reach at about a billion parameters


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """The terms of the equation; exactly one of those that default to None is unknown, or two: model and tokens.

    `flops_per_token` None is 6 x `num_parameters`.
    """

    peak_flops: float
    num_parameters: float | None = None
    tokens: float | None = None
    num_devices: float | None = None
    hours: float | None = None
    mfu: float | None = None
    usd: float | None = None
    usd_per_gpu_hour: float | None = None
    flops_per_token: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the terms by name."""
        return asdict(self)


def solve(run: FleetRun) -> FleetRun:
    """Return the run with every term known; model and tokens missing together are the compute-optimal ones.

    Raises: ConfigurationError for a term that cannot be, for too few terms and for contradicting ones.
    """
    run = _with_device_hours(_checked(run))
    unknown = unknown_terms(run)
    if unknown == ["num_parameters", "tokens"]:
        return _priced(_compute_optimal(run))
    if len(unknown) > 1:
        raise ConfigurationError(
            f"{' and '.join(unknown)} are {'both ' * (len(unknown) == 2)}unknown; give all but one of model, tokens, "
            "devices, hours (or dollars with a price) and mfu."
        )
    if not unknown:
        return _priced(_consistent(run))
    return _priced(_consistent(_solved_for(run, unknown[0])))


def unknown_terms(run: FleetRun) -> list[str]:
    """Return the names of the terms to be found; dollars with a price stand for hours or for devices."""
    terms = ("num_parameters", "tokens", "num_devices", "hours", "mfu")
    run = _with_device_hours(run)
    return [name for name in terms if _term(run, name) is None]


def _solved_for(run: FleetRun, name: str) -> FleetRun:
    known = replace(run, **{name: 1.0})
    needed, available = _needed_flops(known), _available_flops(known)
    value = available / needed if name in ("num_parameters", "tokens") else needed / available
    return replace(run, **{name: value})


def _term(run: FleetRun, name: str) -> float | None:
    if name == "num_parameters" and run.num_parameters is None:
        return run.flops_per_token
    return getattr(run, name)


def _needed_flops(run: FleetRun) -> float:
    per_token = run.flops_per_token or 6 * (run.num_parameters or 0)
    return per_token * (run.tokens or 0)


def _available_flops(run: FleetRun) -> float:
    return (run.num_devices or 0) * run.peak_flops * (run.mfu or 0) * (run.hours or 0) * SECONDS_PER_HOUR


def _compute_optimal(run: FleetRun) -> FleetRun:
    optimum = compute_optimum(_available_flops(run), tokens_per_parameter=TOKENS_PER_PARAMETER)
    return replace(run, num_parameters=optimum.num_parameters, tokens=optimum.tokens)


def _with_device_hours(run: FleetRun) -> FleetRun:
    """Turn dollars into hours or devices where one of them is missing."""
    if run.usd is None or run.usd_per_gpu_hour is None:
        return run
    device_hours = run.usd / run.usd_per_gpu_hour
    if run.hours is None and run.num_devices is not None:
        return replace(run, hours=device_hours / run.num_devices)
    if run.num_devices is None and run.hours is not None:
        return replace(run, num_devices=device_hours / run.hours)
    return run


def _priced(run: FleetRun) -> FleetRun:
    if run.usd_per_gpu_hour is None or run.hours is None or run.num_devices is None:
        return run
    return replace(run, usd=run.hours * run.num_devices * run.usd_per_gpu_hour)


def _consistent(run: FleetRun) -> FleetRun:
    if run.mfu is not None and run.mfu > 1:
        raise ConfigurationError(_over_the_peak(run, run.mfu))
    needed, available = _needed_flops(run), _available_flops(run)
    if available < needed * (1 - 1e-6):
        raise ConfigurationError(
            f"these contradict one another: {needed:.4g} FLOPs are needed and {available:.4g} are available; "
            "leave one of them out to have it computed."
        )
    return run


def _over_the_peak(run: FleetRun, mfu: float) -> str:
    """Say what would bring a utilization above 1 down to it; dollars that are fixed pay for no more device hours."""
    nearest = [f"fleet.tokens={format_at_most((run.tokens or 0) / mfu)}"]
    if run.usd is None:
        nearest.append(f"fleet.num_devices={math.ceil((run.num_devices or 0) * mfu)}")
        nearest.append(f"fleet.hours={math.ceil((run.hours or 0) * mfu)}")
    else:
        nearest.append(f"fleet.usd={format_at_least(run.usd * mfu)}")
    return (
        f"fleet.mfu={mfu:.4g} would be needed, and above 1 is more than the devices' peak; nearest that can be: "
        f"{', or '.join(nearest)}."
    )


def _checked(run: FleetRun) -> FleetRun:
    for name, value in asdict(run).items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigurationError(f"fleet.{name}={value} is not above 0 and finite.")
    if run.mfu is not None and run.mfu > 1:
        raise ConfigurationError(f"fleet.mfu={run.mfu} is not above 0 and at most 1; 0.4 is 40%.")
    if run.usd is not None and run.usd_per_gpu_hour is None:
        raise ConfigurationError(f"fleet.usd={run.usd} needs a price: set fleet.usd_per_gpu_hour.")
    return run
