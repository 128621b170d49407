"""The equations of a training run, solved for whichever of their terms are missing.

    FLOPs = 6 x parameters x tokens             (a known model: its own FLOPs a token x tokens)
    tokens = tokens per parameter x parameters  (a known model: those active for a token)
    device hours = devices x hours
    FLOPs = device hours x 3600 x peak x utilization
    dollars = device hours x price

6 N D: arXiv 2001.08361. Work and devices meet in FLOPs and device hours alone: dollars need no devices.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lmtrain.accounting.cluster import ASSUMED_MFU
from lmtrain.accounting.quantities import format_at_least, format_at_most
from lmtrain.accounting.scaling_laws.compute_optimal import TOKENS_PER_PARAMETER
from lmtrain.errors import ConfigurationError

SECONDS_PER_HOUR: Final = 3600.0
MOST: Final = 1e30  # of any term: beyond the largest run's FLOPs, and far below a float's limit
TOLERANCE: Final = 1e-6
WORK: Final = ("flops", "tokens", "tokens_per_parameter")  # less of the first given one is less work


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """The terms of the equations; None is unknown.

    `flops_per_token` and `num_active_parameters` are a known model's; None is 6 x `num_parameters`, and all of them.
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

    def to_json(self) -> dict[str, Any]:
        """Return the terms by name."""
        return asdict(self)


@dataclass(frozen=True)
class Relation:
    """An equation between terms: `constant` x the product of the terms to their powers = 1."""

    words: str
    constant: float
    powers: Mapping[str, int]

    def unknown(self, run: FleetRun) -> list[str]:
        """Return the unknown terms."""
        return [name for name in self.powers if getattr(run, name) is None]

    def product(self, run: FleetRun) -> float:
        """Return the product over the known terms: 1 where all are known and agree."""
        known = ((getattr(run, name), power) for name, power in self.powers.items())
        return self.constant * math.prod(value**power for value, power in known if value is not None)

    def solve(self, run: FleetRun, name: str) -> FleetRun:
        """Return the run with its one unknown term."""
        return replace(run, **{name: self.product(run) ** (-1 / self.powers[name])})

    def contradiction(self, run: FleetRun) -> str:
        """Return the refusal of contradicting terms."""
        left = next(getattr(run, name) for name, power in self.powers.items() if power < 0)
        return (
            f"these contradict one another: {self.words}, but one side is {left:.4g} and the other "
            f"{left * self.product(run):.4g}; leave one of them out to have it computed."
        )


def solve(run: FleetRun, typed: FleetRun | None = None) -> FleetRun:
    """Return the run with every term known; model and tokens missing together are the compute-optimal ones.

    `typed` is the run with its limits, None: without others. Devices and hours stay unknown where neither follows:
    their product, the device hours, is known.
    Raises: ConfigurationError for an impossible term, for too few terms and for contradicting ones.
    """
    solved = propagate(_checked(run))
    if solved.flops is not None and all(each is None for each in (solved.num_parameters, solved.tokens)):
        solved = propagate(replace(solved, tokens_per_parameter=TOKENS_PER_PARAMETER))
    _require_solved(solved)
    for relation in relations(solved):
        if not relation.unknown(solved) and abs(relation.product(solved) - 1) > TOLERANCE:
            raise ConfigurationError(relation.contradiction(solved))
    if (solved.mfu or 0) > 1:
        raise ConfigurationError(_over_the_peak(typed or run, solved))
    return solved


def propagate(run: FleetRun) -> FleetRun:
    """Return the run with every term derived from the known ones."""
    equations = relations(run)
    for relation in equations * len(equations):  # each pass finds one more at least, or is the last to find any
        if len(unknown := relation.unknown(run)) == 1:
            run = relation.solve(run, unknown[0])
    return run


def relations(run: FleetRun) -> tuple[Relation, ...]:
    """Return the equations of a run: those of a known model count its own FLOPs a token."""
    per_hour = SECONDS_PER_HOUR * run.peak_flops
    if run.flops_per_token is None:
        ratio = {"flops": -1, "num_parameters": 2, "tokens_per_parameter": 1}
        work = (
            Relation("flops = 6 x num_parameters x tokens", 6, {"flops": -1, "num_parameters": 1, "tokens": 1}),
            Relation("flops = 6 x num_parameters^2 x tokens_per_parameter", 6, ratio),
        )
    else:
        work = (Relation("flops = the model's per token x tokens", run.flops_per_token, {"flops": -1, "tokens": 1}),)
    size = "num_parameters" if run.num_active_parameters is None else "num_active_parameters"
    supply = {"flops": -1, "device_hours": 1, "mfu": 1}
    return (
        *work,
        Relation(f"tokens = tokens_per_parameter x {size}", 1, _product("tokens_per_parameter", size, gives="tokens")),
        Relation("device hours = num_devices x hours", 1, _product("num_devices", "hours", gives="device_hours")),
        Relation("flops = device hours x 3600 x peak_flops x mfu", per_hour, supply),
        Relation("usd = device hours x usd_per_gpu_hour", 1, _product("device_hours", "usd_per_gpu_hour", gives="usd")),
    )


def _product(*factors: str, gives: str) -> dict[str, int]:
    return {gives: -1, **dict.fromkeys(factors, 1)}


def is_solved(run: FleetRun) -> bool:
    """Tell whether work, utilization and device hours are known, and nothing else is needed."""
    return None not in (run.flops, run.mfu, run.device_hours)


def _require_solved(run: FleetRun) -> None:
    if is_solved(run):
        return
    terms = ("num_parameters", "tokens", "num_devices", "hours", "mfu")
    unknown = [name for name in terms if getattr(run, name) is None]
    if run.flops_per_token is not None:
        unknown = [name for name in unknown if name != "num_parameters"]
    both = "both " if len(unknown) == 2 else ""
    raise ConfigurationError(
        f"{', '.join(unknown[:-1])} and {unknown[-1]} are {both}unknown; give all but one of model, tokens (or "
        "tokens_per_parameter), devices, hours (or dollars with a price) and mfu; flops stand for model and tokens."
    )


def less_work(run: FleetRun, given: Collection[str], factor: float) -> str:
    """Return the word for a `factor` of a run's work, at most: fewer of the given term."""
    name = next((name for name in WORK if name in given), "tokens")
    amount = (getattr(run, name) or 0) * factor
    return f"fleet.{name}={_ratio_at_most(amount) if name == 'tokens_per_parameter' else format_at_most(amount)}"


def _ratio_at_most(ratio: float) -> str:
    """Write a ratio in three digits, below 1 too."""
    size = 10.0 ** (2 - math.floor(math.log10(ratio)))
    return f"{math.floor(ratio * size) / size:g}"


def given_terms(run: FleetRun) -> frozenset[str]:
    """Return the names of the known terms."""
    return frozenset(name for name, value in asdict(run).items() if value is not None)


def _over_the_peak(typed: FleetRun, solved: FleetRun) -> str:
    """Name the changes from a utilization above 1 to 1, which no run reaches, and to the assumed one."""
    return (
        f"fleet.mfu={solved.mfu:.4g} would be needed, and above 1 is more than the devices' peak; nearest that can be, "
        f"at 100% MFU: {_changes(typed, solved, mfu=1)}; at {ASSUMED_MFU:.0%}, a well-tuned run's: "
        f"{_changes(typed, solved, mfu=ASSUMED_MFU)}."
    )


def _changes(typed: FleetRun, solved: FleetRun, *, mfu: float) -> str:
    """Name less work, and all typed limits that are too low at a utilization; or devices, where time alone is."""
    free = replace(solved, mfu=mfu, num_devices=typed.num_devices, hours=None, usd=None, device_hours=None)
    factor, needed = mfu / (solved.mfu or mfu), propagate(free)
    if typed.num_devices is None and solved.num_devices and typed.hours:  # whole ones, or one for a part of the time
        factor *= math.floor(solved.num_devices) / solved.num_devices or 1
        devices = (needed.device_hours or 0) / typed.hours
        held = math.ceil(devices) * typed.hours if devices > 1 else needed.device_hours
        needed = replace(needed, device_hours=held, usd=(held or 0) * (typed.usd_per_gpu_hour or 0))
    amounts = [(name, getattr(typed, name), getattr(needed, name)) for name in ("usd", "device_hours", "hours")]
    low = {name: least for name, most, least in amounts if most and least and most < least * (1 - TOLERANCE)}
    raised = {name: f"{math.ceil(least)}" if name == "hours" else format_at_least(least) for name, least in low.items()}
    more = [" with ".join(f"fleet.{name}={amount}" for name, amount in raised.items())]
    if typed.num_devices and [*low] == ["hours"]:
        more.insert(0, f"fleet.num_devices={math.ceil(typed.num_devices / factor)}")
    return ", or ".join([less_work(solved, given_terms(typed), factor), *more])


def _checked(run: FleetRun) -> FleetRun:
    for name, value in asdict(run).items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigurationError(f"fleet.{name}={value} is not above 0 and finite.")
        if value is not None and not 1 / MOST <= value <= MOST:
            raise ConfigurationError(
                f"fleet.{name}={value:g} is beyond any run; at most {MOST:g}, at least {1 / MOST:g}."
            )
    if run.mfu is not None and run.mfu > 1:
        raise ConfigurationError(f"fleet.mfu={run.mfu} is not above 0 and at most 1; 0.4 is 40%.")
    if run.usd is not None and run.usd_per_gpu_hour is None:
        raise ConfigurationError(f"fleet.usd={run.usd} needs a price: set fleet.usd_per_gpu_hour.")
    return run
