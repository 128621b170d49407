"""The equations of a training run, solved for the missing terms, and the days, memory and money of the result.

    FLOPs = 6 x parameters x tokens             (a known model: its own FLOPs per token x tokens)
    tokens = tokens per parameter x parameters  (a known model: its active parameters)
    device hours = devices x hours
    FLOPs = device hours x 3600 x peak x utilization
    dollars = device hours x price

6 N D: arXiv 2001.08361.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lmtrain.accounting.machine.hardware import Device
from lmtrain.accounting.quantities import format_at_most, format_count
from lmtrain.accounting.scaling_laws.compute_optimal import TOKENS_PER_PARAMETER, TradeOff, trade_off
from lmtrain.errors import ConfigurationError

SECONDS_PER_HOUR: Final = 3600.0
MOST: Final = 1e30  # of any term: beyond the largest run's FLOPs, and far below a float's limit
TOLERANCE: Final = 1e-6
# Weights, gradients and two moments in fp32, before activations: AdamW, in fp32 or under autocast.
STATIC_BYTES_PER_PARAMETER: Final = 16
TERMS: Final = ("num_parameters", "tokens", "num_devices", "hours", "device_hours", "mfu", "usd")
SUPPLY: Final = ("num_devices", "hours", "device_hours", "mfu", "usd")


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """The terms of the equations; None is unknown.

    `flops_per_token` and `num_active_parameters` are a known model's; None means 6 x `num_parameters`, and all of them.
    `flops` are those of the whole run.
    """

    peak_flops: float
    num_parameters: float | None = None
    tokens: float | None = None
    tokens_per_parameter: float | None = None
    flops: float | None = None
    num_devices: float | None = None
    hours: float | None = None
    device_hours: float | None = None
    mfu: float | None = None
    usd: float | None = None
    usd_per_gpu_hour: float | None = None
    flops_per_token: float | None = None
    num_active_parameters: float | None = None


@dataclass(frozen=True)
class Equation:
    """An equation between terms: `constant` x the product of the terms to their powers = 1."""

    text: str
    constant: float
    powers: Mapping[str, int]

    def unknown(self, run: FleetRun) -> list[str]:
        """Return the unknown terms."""
        return [name for name in self.powers if getattr(run, name) is None]

    def product(self, run: FleetRun) -> float:
        """Return the product over the known terms: 1 where all are known and agree."""
        known = ((getattr(run, name), power) for name, power in self.powers.items())
        return self.constant * math.prod(value**power for value, power in known if value is not None)


def equations(run: FleetRun) -> tuple[Equation, ...]:
    """Return the equations of a run: those of a known model count its own FLOPs per token."""
    per_hour = SECONDS_PER_HOUR * run.peak_flops
    if run.flops_per_token is None:
        ratio = {"flops": -1, "num_parameters": 2, "tokens_per_parameter": 1}
        work = (
            Equation("flops = 6 x num_parameters x tokens", 6, {"flops": -1, "num_parameters": 1, "tokens": 1}),
            Equation("flops = 6 x num_parameters^2 x tokens_per_parameter", 6, ratio),
        )
    else:
        work = (Equation("flops = the model's per token x tokens", run.flops_per_token, {"flops": -1, "tokens": 1}),)
    size = "num_parameters" if run.num_active_parameters is None else "num_active_parameters"
    return (
        *work,
        Equation(f"tokens = tokens_per_parameter x {size}", 1, {"tokens": -1, "tokens_per_parameter": 1, size: 1}),
        Equation("device hours = num_devices x hours", 1, {"device_hours": -1, "num_devices": 1, "hours": 1}),
        Equation(
            "flops = device hours x 3600 x peak_flops x mfu", per_hour, {"flops": -1, "device_hours": 1, "mfu": 1}
        ),
        Equation("usd = device hours x usd_per_gpu_hour", 1, {"usd": -1, "device_hours": 1, "usd_per_gpu_hour": 1}),
    )


def propagate(run: FleetRun) -> FleetRun:
    """Return the run with every term that follows from the known ones."""
    found = equations(run)
    for each in found * len(found):  # every pass finds one more term, or is the last
        if len(unknown := each.unknown(run)) == 1:
            name = unknown[0]
            run = replace(run, **{name: each.product(run) ** (-1 / each.powers[name])})
    return run


def is_solved(run: FleetRun) -> bool:
    """Return whether work, utilization and device hours are known: nothing else is needed."""
    return None not in (run.flops, run.mfu, run.device_hours)


def solve(run: FleetRun) -> FleetRun:
    """Return the run with every term known; a model and tokens that are both missing are the compute-optimal ones.

    Devices and hours stay unknown where only their product, the device hours, follows.
    Raises: ConfigurationError for an impossible term, for too few terms and for contradicting ones.
    """
    solved = propagate(_checked(run))
    if solved.flops is not None and solved.num_parameters is None and solved.tokens is None:
        solved = propagate(replace(solved, tokens_per_parameter=TOKENS_PER_PARAMETER))
    if not is_solved(solved):
        names = ("num_parameters", "tokens", "num_devices", "hours", "mfu")
        unknown = [name for name in names if getattr(solved, name) is None]
        if run.flops_per_token is not None:
            unknown = [name for name in unknown if name != "num_parameters"]
        raise ConfigurationError(
            f"{' and '.join(unknown)} are unknown; give all but one of model, tokens (or tokens_per_parameter), "
            "devices, hours (or dollars with a price) and mfu; flops stand for model and tokens."
        )
    for each in equations(solved):
        if not each.unknown(solved) and abs(each.product(solved) - 1) > TOLERANCE:
            raise ConfigurationError(f"these terms contradict one another: {each.text}; leave one of them out.")
    if (solved.mfu or 0) > 1:
        raise ConfigurationError(
            f"fleet.mfu={solved.mfu:.4g} would be needed, and must be at most 1; give more devices, time or money."
        )
    return solved


def _checked(run: FleetRun) -> FleetRun:
    for name, value in asdict(run).items():
        if value is not None and not 1 / MOST <= value <= MOST:
            raise ConfigurationError(f"fleet.{name} must be above 0 and at most {MOST:g}, got {value:g}.")
    if run.mfu is not None and run.mfu > 1:
        raise ConfigurationError(f"fleet.mfu must be above 0 and at most 1, got {run.mfu}; 0.4 is 40%.")
    if run.usd is not None and run.usd_per_gpu_hour is None:
        raise ConfigurationError(f"fleet.usd={run.usd:g} needs a price: set fleet.usd_per_gpu_hour.")
    return run


def solve_in_whole_devices(run: FleetRun) -> FleetRun:
    """Solve a run in whole devices where their number was not given.

    For a known amount of work they are rounded up, and the time shortens; from money and time they are rounded down.
    """
    solved = solve(run)
    if run.num_devices is not None or solved.num_devices is None:
        return solved
    if propagate(replace(run, hours=None, usd=None, device_hours=None)).device_hours is not None:
        whole = math.ceil(solved.num_devices * (1 - 1e-9))
        return solve(replace(solved, num_devices=whole, hours=None, usd=None))
    whole = math.floor(solved.num_devices * (1 + 1e-9))
    if whole == 0:
        return solve(replace(run, num_devices=1, hours=None))
    return solve(replace(run, num_devices=whole, usd=None, device_hours=None))


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A solved run and the terms it was `asked` with.

    `device` None is outside the table; `model` None is known by its size.
    """

    run: FleetRun
    asked: FleetRun
    peak_source: str
    mfu_is_assumed: bool = False
    device: Device | None = None
    model: str | None = None
    context_tokens: int | None = None
    precision: str | None = None
    bytes_per_parameter: float = STATIC_BYTES_PER_PARAMETER

    @property
    def found(self) -> tuple[str, ...]:
        """Return the computed terms: device hours where devices and hours are not known apart, FLOPs of a supply."""
        asked, parted = self.asked, () if self.run.num_devices is None else ("device_hours",)
        missing = [name for name in TERMS if getattr(asked, name) is None and name not in parted]
        of_supply = asked.flops is None and propagate(replace(asked, **dict.fromkeys(SUPPLY))).flops is None
        return (*(name for name in missing if getattr(self.run, name)), *(["flops"] if of_supply else []))

    @property
    def num_parameters(self) -> float:
        """Return the model's parameters."""
        return self.run.num_parameters or 0

    @property
    def num_active_parameters(self) -> float:
        """Return the parameters active for a token."""
        return self.run.num_active_parameters or self.num_parameters

    @property
    def flops(self) -> float:
        """Return the run's FLOPs: by PaLM's count of a known model, by 6 N of a size."""
        return self.run.flops or 0

    @property
    def static_bytes(self) -> float:
        """Return the bytes of weights, gradients and AdamW's state on all devices together."""
        return self.bytes_per_parameter * self.num_parameters

    @property
    def fewest_devices(self) -> int | None:
        """Return how many devices hold those bytes in shards, None where a device's memory is not known."""
        return math.ceil(self.static_bytes / self.device.memory_bytes) if self.device else None

    @property
    def most_parameters(self) -> float | None:
        """Return the largest model whose static bytes fit all devices together."""
        if self.device is None or self.run.num_devices is None:
            return None
        return self.run.num_devices * self.device.memory_bytes / self.bytes_per_parameter

    @property
    def trade_offs(self) -> tuple[TradeOff, ...]:
        """Return other sizes on their tokens for the same FLOPs."""
        return trade_off(self.flops)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return a line where the run does not fit its devices, with the nearest change."""
        devices, fewest = self.run.num_devices, self.fewest_devices
        if fewest is None or devices is None or devices >= fewest:
            return ()
        is_given = self.asked.num_devices is not None
        smaller = f"fleet.num_parameters={format_at_most(self.most_parameters or 0)}"
        fix = f"fleet.num_devices={fewest}" if is_given or "flops" not in self.found else smaller
        size = f"{self.static_bytes / 1e9:,.1f} GB before activations on {format_count(devices, 'device')}"
        return (f"does not fit: {size}; nearest that fits: {fix}",)

    @property
    def is_possible(self) -> bool:
        """Return whether the run fits its devices."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the terms and all derived values as plain numbers."""
        names = ("mfu_is_assumed", "peak_source", "model", "context_tokens", "precision", "bytes_per_parameter")
        derived = ("static_bytes", "fewest_devices", "most_parameters")
        return asdict(self.run) | {
            "found": list(self.found),
            "days": None if self.run.hours is None else self.run.hours / 24,
            **{name: getattr(self, name) for name in (*names, *derived)},
            "trade_offs": [asdict(choice) for choice in self.trade_offs],
            "advice": list(self.problems),
            "ok": self.is_possible,
        }
