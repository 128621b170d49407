"""A mixture's written settings, checked: sources with weights, and the weights of later parts of the run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtrain.data.interleave import Placed, turns_per_period
from lmtrain.errors import ConfigurationError, suggest

EXAMPLE = "data.sources.web.path=FOLDER data.sources.web.weight=0.7"


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """One source: the folder of a prepared data set, and its weight in tokens."""

    path: str
    weight: float


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The weights from a fraction of the run on."""

    start: float
    weights: Mapping[str, float]

    def describe(self) -> str:
        """Return the shares in words."""
        total = math.fsum(self.weights.values())
        shares = ", ".join(f"{name} {weight / total:.4g}" for name, weight in self.weights.items())
        return f"from {self.start:g}: {shares}" if self.start else shares


def parse_sources(sources: Mapping[str, Any]) -> dict[str, SourceSettings]:
    """Read the sources.

    Raises:
        ConfigurationError: There is none, or one without a path, with an unknown key, or with a weight below 0.
    """
    if not sources:
        raise ConfigurationError(f"data.sources is empty; name a prepared folder and its weight: {EXAMPLE}.")
    parsed: dict[str, SourceSettings] = {}
    for name, given in sources.items():
        key = f"data.sources.{name}"
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"{key}={given} is not a source; write {EXAMPLE.replace('web', name)}.")
        for unknown in sorted(given.keys() - {"path", "weight"}):
            near = suggest(unknown, ["path", "weight"])
            raise ConfigurationError(f"{key}.{unknown}={given[unknown]}: a source has path and weight.{near}")
        if not given.get("path"):
            raise ConfigurationError(f"{key}.path has no value; set it to a prepared folder: {key}.path=FOLDER.")
        weight = _weight(given.get("weight", 1.0), key=f"{key}.weight")
        parsed[name] = SourceSettings(path=str(given["path"]), weight=weight)
    return parsed


def parse_schedule(sources: Mapping[str, SourceSettings], schedule: Sequence[Mapping[str, Any]]) -> tuple[Phase, ...]:
    """Read the weights of the whole run: those of the sources, then each phase of the schedule.

    Raises:
        ConfigurationError: A phase out of order, with an unknown source or without a weight, or a source in no phase.
    """
    phases = [Phase(start=0.0, weights={name: source.weight for name, source in sources.items()})]
    for number, given in enumerate(schedule):
        key = f"data.schedule.{number}"
        for unknown in sorted(given.keys() - {"from", "weights"}):
            near = suggest(unknown, ["from", "weights"])
            raise ConfigurationError(f"{key}.{unknown}={given[unknown]}: a phase has from and weights.{near}")
        start, named = given.get("from"), given.get("weights") or {}
        if not isinstance(start, int | float) or not phases[-1].start < start < 1:
            msg = f"{key}.from={start} is not a fraction of the run after {phases[-1].start:g} and before 1"
            raise ConfigurationError(f"{msg}; 0.9 starts the last tenth.")
        for name in named:
            if name not in sources:
                known = ", ".join(sources)
                msg = f"{key}.weights.{name}={named[name]}: there is no such source; data.sources has {known}"
                raise ConfigurationError(f"{msg}.{suggest(name, sources)}")
        weights = {name: _weight(named.get(name, 0.0), key=f"{key}.weights.{name}") for name in sources}
        phases.append(Phase(start=float(start), weights=weights))
    _require_turns(phases)
    for name in sources:
        if not any(phase.weights[name] for phase in phases):
            msg = f"data.sources.{name}.weight=0: {name} is never read"
            raise ConfigurationError(f"{msg}; leave it out, or give it weight here or in data.schedule.")
    return tuple(phases)


def placed(phases: Sequence[Phase], num_positions: int) -> list[Placed]:
    """Return the first position and the weights of each phase of a run of so many positions."""
    return [(round(phase.start * num_positions), tuple(phase.weights.values())) for phase in phases]


def mean_shares(phases: Sequence[Phase]) -> dict[str, float]:
    """Return each source's share of the tokens of the whole run."""
    ends = [*(phase.start for phase in phases[1:]), 1.0]
    shares = dict.fromkeys(phases[0].weights, 0.0)
    for phase, end in zip(phases, ends, strict=True):
        total = math.fsum(phase.weights.values())
        for name, weight in phase.weights.items():
            shares[name] += (end - phase.start) * weight / total
    return shares


def _require_turns(phases: Sequence[Phase]) -> None:
    for number, phase in enumerate(phases):
        key = f"data.schedule.{number - 1}.weights" if number else "data.sources.*.weight"
        shown = ", ".join(f"{name}={weight:g}" for name, weight in phase.weights.items())
        if not any(phase.weights.values()):
            raise ConfigurationError(f"{key}: {shown} are all 0; at least one source needs weight.")
        try:
            turns_per_period(list(phase.weights.values()))
        except ValueError as problem:
            raise ConfigurationError(f"{key}: {shown}: {problem}; raise it or leave the source out.") from problem


def _weight(value: Any, *, key: str) -> float:
    try:
        weight = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise ConfigurationError(
            f"{key}={value} is not a weight: a number, 0 or above; shares are weights over their sum."
        )
    return weight
