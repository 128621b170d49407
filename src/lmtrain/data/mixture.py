"""Several prepared data sets read by one run: by weights in tokens, which may change at fractions of the run.

Window i of the run is a pure function of (seed, fingerprints, weights, i): the source of each turn comes from
`interleave`, the window from that source's own keyed order. Changing weights encodes nothing again.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.interleave import Placed, ScheduledInterleave, turns_per_period
from lmtrain.data.order import WindowOrder
from lmtrain.data.rows import RowBatch, Rows
from lmtrain.data.shards import DTYPES, Dataset, open_dataset
from lmtrain.errors import ConfigurationError, DataError, suggest, wrong

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
    """Read the sources: at least one, each with a path, known keys and a weight of at least 0."""
    if not sources:
        raise ConfigurationError(f"data.sources is empty; name a prepared folder and its weight: {EXAMPLE}.")
    parsed: dict[str, SourceSettings] = {}
    for name, given in sources.items():
        key = f"data.sources.{name}"
        _require_keys(given, ("path", "weight"), key)
        if not given.get("path"):
            raise ConfigurationError(f"{key}.path: must be a prepared folder, as in {EXAMPLE.replace('web', name)}.")
        weight = _weight(given.get("weight", 1.0), key=f"{key}.weight")
        parsed[name] = SourceSettings(path=str(given["path"]), weight=weight)
    return parsed


def parse_schedule(sources: Mapping[str, SourceSettings], schedule: Sequence[Mapping[str, Any]]) -> tuple[Phase, ...]:
    """Read the weights of the whole run: those of the sources, then each phase of the schedule.

    Raises:
        ConfigurationError: A phase out of order, with an unknown source or without a weight.
    """
    phases = [Phase(start=0.0, weights={name: source.weight for name, source in sources.items()})]
    for number, given in enumerate(schedule):
        key = f"data.schedule.{number}"
        _require_keys(given, ("from", "weights"), key)
        start, named = given.get("from"), given.get("weights") or {}
        if not isinstance(start, int | float) or not phases[-1].start < start < 1:
            raise wrong(f"{key}.from", f"a fraction of the run after {phases[-1].start:g} and before 1", start)
        _require_keys(named, tuple(sources), f"{key}.weights")
        weights = {name: _weight(named.get(name, 0.0), key=f"{key}.weights.{name}") for name in sources}
        phases.append(Phase(start=float(start), weights=weights))
    _require_turns(phases)
    return tuple(phases)


def placed(phases: Sequence[Phase], num_positions: int) -> list[Placed]:
    """Return the first position and the weights of each phase of a run of `num_positions`."""
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


def _require_keys(given: Any, known: Sequence[str], key: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{key}: must have {' and '.join(known)}, got {given}.")
    for unknown in sorted(given.keys() - set(known)):
        raise ConfigurationError(f"{key}.{unknown}: must be one of {', '.join(known)}.{suggest(unknown, known)}")


def _require_turns(phases: Sequence[Phase]) -> None:
    for number, phase in enumerate(phases):
        key = f"data.schedule.{number - 1}.weights" if number else "data.sources.*.weight"
        shown = ", ".join(f"{name}={weight:g}" for name, weight in phase.weights.items())
        if not any(phase.weights.values()):
            raise ConfigurationError(f"{key}: must be above 0 for one source, got {shown}.")
        try:
            turns_per_period(list(phase.weights.values()))
        except ValueError as problem:
            raise ConfigurationError(f"{key}: {shown}: {problem}; raise it or leave the source out.") from problem


def _weight(value: Any, *, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise wrong(key, "a number of at least 0", value)
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Named data sets of one tokenizer, and their weights through the run; the first one is the main one."""

    datasets: Mapping[str, Dataset]
    phases: tuple[Phase, ...]

    @property
    def main(self) -> Dataset:
        """Return the first source's data set: its held-out splits measure the run."""
        return next(iter(self.datasets.values()))

    @property
    def fingerprint(self) -> str:
        """Return the facts behind the tokens: of a single data set its own, of several theirs together."""
        fingerprints = [dataset.manifest.fingerprint for dataset in self.datasets.values()]
        return (
            fingerprints[0] if len(fingerprints) == 1 else hashlib.sha256(":".join(fingerprints).encode()).hexdigest()
        )

    def describe_weights(self) -> str:
        """Return the weights in words, the same for the same order of windows."""
        return "; ".join(phase.describe() for phase in self.phases)


def single_source(dataset: Dataset) -> Mixture:
    """Return a data set as a mixture of one."""
    return Mixture(
        datasets={dataset.manifest.name: dataset}, phases=(Phase(start=0.0, weights={dataset.manifest.name: 1.0}),)
    )


def open_mixture(sources: Mapping[str, Mapping[str, Any]], schedule: Sequence[Mapping[str, Any]] = ()) -> Mixture:
    """Open the sources of a mixture, each {path, weight}; `schedule` lists {from, weights} for later parts of the run.

    Raises:
        ConfigurationError: An invalid weight, an absent source, a schedule out of order.
        DataError: A folder cannot be read, or the tokenizers differ.
    """
    parsed = parse_sources(sources)
    phases = parse_schedule(parsed, schedule)
    datasets = {name: open_dataset(source.path) for name, source in parsed.items()}
    require_one_tokenizer(datasets)
    return Mixture(datasets=datasets, phases=phases)


def require_one_tokenizer(datasets: Mapping[str, Dataset]) -> None:
    """Refuse tokens of different tokenizers."""
    first, *others = datasets
    wanted = datasets[first].manifest.tokenizer_fingerprint
    for name in others:
        found = datasets[name].manifest.tokenizer_fingerprint
        if found != wanted:
            raise DataError(
                f"data.sources.{name}: must be encoded with the tokenizer of {first} ({wanted[:12]}), got {found[:12]};"
                f" prepare it again with tokenizer=folder tokenizer.path={datasets[first].tokenizer_folder}"
            )


@final
class MixedRows:
    """The rows of several sources, numbered one source after another, and a run's order of reading them."""

    def __init__(self, sources: Sequence[Rows], *, interleave: ScheduledInterleave, seed: int, dtype: str) -> None:
        """Order each source's rows by its own key, and take turns."""
        self._sources = sources
        self._interleave = interleave
        self._dtype = DTYPES[dtype]
        self._firsts = np.cumsum([0, *(rows.num_rows for rows in sources)])
        self._orders = [
            WindowOrder(num_windows=rows.num_rows, seed=seed, fingerprint=rows.fingerprint) for rows in sources
        ]
        self.num_rows = int(self._firsts[-1])

    @property
    def fingerprint(self) -> str:
        """Return the facts behind the rows."""
        return ":".join(rows.fingerprint for rows in self._sources)

    def order(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row at each position of the run: [N] -> [N]."""
        turns = self._interleave(positions)
        rows = np.empty_like(positions)
        for source, order in enumerate(self._orders):
            mine = (turns.sources == source).nonzero()[0]
            if len(mine):
                rows[mine] = self._firsts[source] + order(turns.indices[mine])
        return rows

    def sources_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row's source: [N] -> [N]."""
        return self._firsts.searchsorted(rows, side="right") - 1

    def read(self, rows: NDArray[np.int64]) -> RowBatch:
        """Read rows of any sources: [B] -> [B, T + 1]."""
        sources = self.sources_of(rows)
        parts = [
            (mine, rows_of_source.read(rows[mine] - self._firsts[source]))
            for source, rows_of_source in enumerate(self._sources)
            if len(mine := (sources == source).nonzero()[0])
        ]
        ids = np.empty((len(rows), parts[0][1].ids.shape[1]), self._dtype)
        for mine, part in parts:
            ids[mine] = part.ids
        return RowBatch(ids, _joined(parts, len(ids), "documents"), _joined(parts, len(ids), "loss_mask"))


def _joined(parts: list[tuple[NDArray[np.int64], RowBatch]], num_rows: int, name: str) -> Any:
    """Put the sources' arrays [b, T] into one [B, T]; sources without loss marks train on everything."""
    arrays = [(mine, getattr(part, name)) for mine, part in parts]
    known = [array for _, array in arrays if array is not None]
    if not known:
        return None
    joined = np.ones((num_rows, known[0].shape[1]), known[0].dtype)
    for mine, array in arrays:
        if array is not None:
            joined[mine] = array
    return joined
