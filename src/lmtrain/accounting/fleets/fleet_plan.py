"""A solved fleet: what it comes to in days, memory, money and energy, and whether it stays within what was allowed."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lmtrain.accounting.fleets.fleet import FleetRun, solve
from lmtrain.accounting.machine.hardware import Device
from lmtrain.accounting.quantities import format_at_most
from lmtrain.accounting.scaling_laws.compute_optimal import TradeOff, trade_off

# Weights, gradients and two moments in fp32, before activations: AdamW, in fp32 or under autocast.
STATIC_BYTES_PER_PARAMETER: Final = 16
TERMS: Final = ("num_parameters", "tokens", "num_devices", "hours", "mfu")
TOLERANCE: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A run with every term known; `found` are those that were computed, `allowed_...` limits that were given.

    `device` None is one that the table does not have; `model` None is one known by its size alone.
    """

    run: FleetRun
    found: tuple[str, ...]
    peak_source: str
    allowed_hours: float | None = None
    allowed_usd: float | None = None
    mfu_is_assumed: bool = False
    device: Device | None = None
    model: str | None = None
    context_tokens: int | None = None

    @property
    def num_parameters(self) -> float:
        """Return the model's parameters."""
        return self.run.num_parameters or 0

    @property
    def flops(self) -> float:
        """Return what the run computes: by PaLM's count of a known model, by 6 N of a size."""
        return (self.run.flops_per_token or 6 * self.num_parameters) * (self.run.tokens or 0)

    @property
    def static_bytes(self) -> float:
        """Return what weights, gradients and AdamW's state take on all devices together, before activations."""
        return STATIC_BYTES_PER_PARAMETER * self.num_parameters

    @property
    def fewest_devices(self) -> int | None:
        """Return on how many devices those bytes fit when sharded, None where a device's memory is not known."""
        return math.ceil(self.static_bytes / self.device.memory_bytes) if self.device else None

    @property
    def most_parameters(self) -> float | None:
        """Return the largest model whose static bytes the devices hold together."""
        if self.device is None:
            return None
        return (self.run.num_devices or 0) * self.device.memory_bytes / STATIC_BYTES_PER_PARAMETER

    @property
    def kwh(self) -> float | None:
        """Return the energy of the devices at their rated power: an upper bound, without hosts and cooling."""
        if self.device is None:
            return None
        return (self.run.hours or 0) * (self.run.num_devices or 0) * self.device.power_watts / 1000

    @property
    def trade_offs(self) -> tuple[TradeOff, ...]:
        """Return other sizes on the tokens that the same FLOPs leave for them."""
        return trade_off(self.flops)

    @property
    def problems(self) -> tuple[str, ...]:
        """Say what does not fit or finish, each with the nearest change that would."""
        lines: list[str] = []
        hours, devices = self.run.hours or 0, self.run.num_devices or 0
        if self.fewest_devices is not None and devices < self.fewest_devices:
            lines.append(
                f"does not fit: {self.static_bytes / 1e9:,.1f} GB before activations need at least "
                f"fleet.num_devices={self._enough_devices}, or a model of at most "
                f"fleet.num_parameters={format_at_most(self.most_parameters or 0)}"
            )
        if self.allowed_hours is not None and hours > self.allowed_hours * (1 + TOLERANCE):
            factor = hours / self.allowed_hours
            lines.append(
                f"does not finish: it takes {hours:,.1f} of {self.allowed_hours:,.1f} hours; it would with "
                f"fleet.num_devices={self._enough_devices} or with fleet.tokens="
                f"{format_at_most((self.run.tokens or 0) / factor)}"
            )
        if self.allowed_usd is not None and (self.run.usd or 0) > self.allowed_usd * (1 + TOLERANCE):
            factor = (self.run.usd or 0) / self.allowed_usd
            lines.append(
                f"does not finish: it costs ${self.run.usd:,.2f} of ${self.allowed_usd:,.2f}; that pays for "
                f"fleet.tokens={format_at_most((self.run.tokens or 0) / factor)}"
            )
        return tuple(lines)

    @property
    def _enough_devices(self) -> int:
        """Return the devices that hold the model and end in the allowed time."""
        hours, devices = self.run.hours or 0, self.run.num_devices or 0
        factor = hours / self.allowed_hours if self.allowed_hours else 0
        return max(self.fewest_devices or 1, math.ceil(devices * factor * (1 - TOLERANCE)))

    @property
    def is_possible(self) -> bool:
        """Tell whether the run fits its devices and stays within what was allowed."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the terms and what follows from them as plain numbers."""
        return self.run.to_json() | {
            "found": list(self.found),
            "days": (self.run.hours or 0) / 24,
            "flops": self.flops,
            "mfu_is_assumed": self.mfu_is_assumed,
            "peak_source": self.peak_source,
            "model": self.model,
            "context_tokens": self.context_tokens,
            "static_bytes": self.static_bytes,
            "fewest_devices": self.fewest_devices,
            "most_parameters": self.most_parameters,
            "kwh": self.kwh,
            "trade_offs": [asdict(choice) for choice in self.trade_offs],
            "advice": list(self.problems),
            "ok": self.is_possible,
        }


def without_limits(run: FleetRun) -> FleetRun:
    """Return the run to solve: where time and money are limits rather than terms, without them.

    With everything else known the time follows, and is held against what was allowed; with one of model, tokens and
    utilization missing, the shorter of the given time and what the money pays for counts.
    """
    missing = [name for name in TERMS if getattr(run, name) is None]
    if not missing:
        return replace(run, hours=None, usd=None)
    if missing in (["hours"], ["num_devices"]):
        return replace(run, usd=None)
    if run.usd and run.usd_per_gpu_hour and run.hours and run.num_devices:
        is_money_short = run.usd / run.usd_per_gpu_hour / run.num_devices < run.hours
        return replace(run, hours=None) if is_money_short else replace(run, usd=None)
    return run


def solve_in_whole_devices(run: FleetRun) -> FleetRun:
    """Solve a run; devices that were not given are rounded up to whole ones, and the time shortens accordingly."""
    solved = solve(run)
    if run.num_devices is not None or run.num_parameters is None or run.tokens is None:
        return solved
    whole = math.ceil((solved.num_devices or 1) * (1 - 1e-9))
    return solve(replace(solved, num_devices=whole, hours=None, usd=None))
