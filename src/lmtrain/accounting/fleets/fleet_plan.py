"""A solved fleet: its days, memory, money and energy, and whether it stays within the allowed."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lmtrain.accounting.fleets.fleet import (
    TOLERANCE,
    WORK,
    FleetRun,
    is_solved,
    less_work,
    propagate,
    solve,
)
from lmtrain.accounting.machine.hardware import Device
from lmtrain.accounting.quantities import format_at_most, format_count, format_quantity
from lmtrain.accounting.scaling_laws.compute_optimal import TradeOff, trade_off

# Weights, gradients and two moments in fp32, before activations: AdamW, in fp32 or under autocast.
STATIC_BYTES_PER_PARAMETER: Final = 16
TERMS: Final = ("num_parameters", "tokens", "num_devices", "hours", "device_hours", "mfu", "usd")
SUPPLY: Final = ("num_devices", "hours", "device_hours", "mfu", "usd")


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A run with every term known; `found` are the computed ones, `given` their sources.

    `allowed_...` are given limits. `device` None is one outside the table; `model` None is one
    known by its size alone; `over_mfu` are the runs over a range of utilization, the lowest first, `run` in its middle.
    `swept` are the words of this fleet alone in a sweep.
    """

    run: FleetRun
    found: tuple[str, ...]
    given: frozenset[str] = frozenset({"num_parameters", "tokens", "num_devices", "mfu"})
    peak_source: str
    allowed_hours: float | None = None
    allowed_usd: float | None = None
    allowed_device_hours: float | None = None
    mfu_is_assumed: bool = False
    device: Device | None = None
    model: str | None = None
    context_tokens: int | None = None
    precision: str | None = None
    bytes_per_parameter: float = STATIC_BYTES_PER_PARAMETER
    over_mfu: tuple[FleetRun, ...] = ()
    swept: Sequence[str] = ()

    @property
    def num_parameters(self) -> float:
        """Return the model's parameters."""
        return self.run.num_parameters or 0

    @property
    def num_active_parameters(self) -> float:
        """Return the parameters active for a token: all, of a size alone."""
        return self.run.num_active_parameters or self.num_parameters

    @property
    def flops(self) -> float:
        """Return the run's FLOPs: by PaLM's count of a known model, by 6 N of a size."""
        return self.run.flops or 0

    @property
    def static_bytes(self) -> float:
        """Return the bytes of weights, gradients and AdamW's state on all devices together, before activations."""
        return self.bytes_per_parameter * self.num_parameters

    @property
    def fewest_devices(self) -> int | None:
        """Return on how many devices those bytes fit when sharded, None where a device's memory is not known."""
        return math.ceil(self.static_bytes / self.device.memory_bytes) if self.device else None

    @property
    def most_parameters(self) -> float | None:
        """Return the largest model with its static bytes on all devices together."""
        if self.device is None or self.run.num_devices is None:
            return None
        return self.run.num_devices * self.device.memory_bytes / self.bytes_per_parameter

    @property
    def kwh(self) -> float | None:
        """Return the energy of the devices at their rated power: an upper bound, without hosts and cooling."""
        if self.device is None:
            return None
        return (self.run.device_hours or 0) * self.device.power_watts / 1000

    @property
    def trade_offs(self) -> tuple[TradeOff, ...]:
        """Return other sizes on their tokens for the same FLOPs."""
        return trade_off(self.flops)

    @property
    def problems(self) -> tuple[str, ...]:
        """Name each failure to fit or finish, with the nearest change; of a range, at its lowest end."""
        if self.over_mfu:
            lowest = self.over_mfu[0]
            worst = replace(self, run=lowest, over_mfu=())
            return tuple(f"at {lowest.mfu:.3g} MFU it {line}" for line in worst.problems)
        found = (self._does_not_fit(), self._takes_too_long(), self._costs_too_much(), self._holds_too_long())
        return tuple(line for line in found if line)

    def _does_not_fit(self) -> str | None:
        devices = self.run.num_devices
        if self.fewest_devices is None or devices is None or devices >= self.fewest_devices:
            return None
        return (
            f"does not fit: {self.static_bytes / 1e9:,.1f} GB before activations on "
            f"{format_count(devices, 'device')}; it would with {self._what_fits()}"
        )

    def _what_fits(self) -> str:
        """Return more devices, unless the model grows with them, or a smaller model, on as many if they shrink."""
        smaller = f"fleet.num_parameters={format_at_most(self.most_parameters or 0)}"
        smaller += f" in place of model={self.model}" if self.model else ""
        sizes = self.given & {"num_parameters", *WORK}
        is_free = len(sizes) <= 1 + ("num_parameters" in sizes)  # nothing else fixes the model's size
        if "flops" in self.found:  # less work would be that of fewer devices
            return smaller if "num_devices" in self.given else f"fleet.num_devices={self.run.num_devices} {smaller}"
        more = f"fleet.num_devices={self._enough_devices}"
        return f"{more} or with {smaller}" if is_free and "num_devices" in self.given else more

    def _takes_too_long(self) -> str | None:
        hours, allowed = self.run.hours, self.allowed_hours
        if hours is None or allowed is None or hours <= allowed * (1 + TOLERANCE):
            return None
        return (
            f"does not finish: it takes {hours:,.1f} of {allowed:,.1f} hours; it would with "
            f"fleet.num_devices={self._enough_devices} or with {self._less_work(allowed / hours)}"
        )

    def _costs_too_much(self) -> str | None:
        usd, allowed = self.run.usd, self.allowed_usd
        if usd is None or allowed is None or usd <= allowed * (1 + TOLERANCE):
            return None
        costs, budget = (format_quantity(amount, "usd") for amount in (usd, allowed))
        return f"does not finish: it costs {costs} of {budget}; that pays for {self._less_work(allowed / usd)}"

    def _holds_too_long(self) -> str | None:
        held, allowed = self.run.device_hours, self.allowed_device_hours
        if held is None or allowed is None or held <= allowed * (1 + TOLERANCE):
            return None
        return (
            f"does not finish: it takes {held:,.0f} of {allowed:,.0f} device hours; those are enough for "
            f"{self._less_work(allowed / held)}"
        )

    def _less_work(self, factor: float) -> str:
        return less_work(self.run, self.given, factor)

    @property
    def _enough_devices(self) -> int:
        """Return the devices for the model's bytes and the allowed time."""
        hours, devices = self.run.hours or 0, self.run.num_devices or 0
        factor = hours / self.allowed_hours if self.allowed_hours else 0
        return max(self.fewest_devices or 1, math.ceil(devices * factor * (1 - TOLERANCE)))

    @property
    def is_possible(self) -> bool:
        """Tell whether the run fits its devices and stays within its limits."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the terms and all derived values as plain numbers."""
        return self.run.to_json() | {
            "swept": list(self.swept),
            "found": list(self.found),
            "days": None if self.run.hours is None else self.run.hours / 24,
            "mfu_is_assumed": self.mfu_is_assumed,
            "peak_source": self.peak_source,
            "model": self.model,
            "context_tokens": self.context_tokens,
            "precision": self.precision,
            "bytes_per_parameter": self.bytes_per_parameter,
            "static_bytes": self.static_bytes,
            "fewest_devices": self.fewest_devices,
            "most_parameters": self.most_parameters,
            "kwh": self.kwh,
            "trade_offs": [asdict(choice) for choice in self.trade_offs],
            "over_mfu": [run.to_json() for run in self.over_mfu],
            "advice": list(self.problems),
            "ok": self.is_possible,
        }


def without_limits(run: FleetRun) -> FleetRun:
    """Return the run to solve: where time and money are limits rather than terms, without them.

    With everything else known the time follows, and is held against the allowed; with one of model, tokens and
    utilization missing, the shorter of the given time and the time for the money counts.
    """
    unpaid = replace(run, usd=None, device_hours=None)
    free = replace(unpaid, hours=None)
    if _has_time(free):
        return free
    run = _tightest(run)
    held = propagate(replace(run, hours=None)).hours
    if held is not None and run.hours is not None:
        return replace(run, hours=None) if held < run.hours else unpaid
    return unpaid if _has_time(unpaid) or (run.hours is None and is_solved(propagate(unpaid))) else run


def _tightest(run: FleetRun) -> FleetRun:
    """Return the run with only the shorter of its device hours and the money's."""
    paid = propagate(replace(run, device_hours=None, hours=None)).device_hours if run.usd is not None else None
    if paid is None or run.device_hours is None:
        return run
    return replace(run, device_hours=None) if paid < run.device_hours else replace(run, usd=None)


def _has_time(run: FleetRun) -> bool:
    solved = propagate(run)
    return is_solved(solved) and None not in (solved.hours, solved.num_devices)


def solve_in_whole_devices(run: FleetRun, typed: FleetRun | None = None) -> FleetRun:
    """Solve a run in whole devices where their number was not given; `typed` is the run with its limits.

    For a known amount of work they are rounded up, and the time shortens; from money and time they are rounded down.
    """
    solved = solve(run, typed)
    if run.num_devices is not None or solved.num_devices is None:
        return solved
    if propagate(replace(run, hours=None, usd=None, device_hours=None)).device_hours is not None:
        whole = math.ceil(solved.num_devices * (1 - 1e-9))
        return solve(replace(solved, num_devices=whole, hours=None, usd=None), typed)
    whole = math.floor(solved.num_devices * (1 + 1e-9))
    if whole == 0:
        return solve(replace(run, num_devices=1, hours=None), typed)
    return solve(replace(run, num_devices=whole, usd=None, device_hours=None), typed)


def found_terms(asked: FleetRun, solved: FleetRun) -> tuple[str, ...]:
    """Return the computed terms: device hours where nothing parts them, FLOPs where the devices decide."""
    parted = () if solved.num_devices is None else ("device_hours",)
    found = [name for name in TERMS if getattr(asked, name) is None and getattr(solved, name) and name not in parted]
    if asked.flops is None and propagate(replace(asked, **dict.fromkeys(SUPPLY))).flops is None:
        found.append("flops")
    return tuple(found)
