"""The source at each position of a run, with sources in the proportion of their weights at any moment.

The order repeats after a period of a whole number of turns for every source. Inside it, turn j of a source with m
of M turns is due in [j M / m, (j + 1) M / m), and the earliest deadline goes first (Tijdeman, "The chairman assignment
problem", 1980; Baruah et al., "Proportionate progress", 1996): after any number of positions each source has had its
share to within one turn. Any position is answered at once, from a table of one period. `N positions, K sources`.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 1 << 16
Placed = tuple[int, tuple[float, ...]]  # a phase's first position, and its weights [K]


@dataclass(frozen=True, kw_only=True)
class PhasesRead:
    """The phases that the text of the first `step` steps was read by."""

    phases: Sequence[Placed]
    step: int


class Turns(NamedTuple):
    """Of each position: its source, and the number of that source's earlier turns: both [N]."""

    sources: NDArray[np.int64]
    indices: NDArray[np.int64]


@final
class Interleave:
    """Turns for constant weights, exact where one period of up to 65,536 turns can hold them."""

    def __init__(self, weights: Sequence[float]) -> None:
        """Take weights of any sum, at least one of them above 0."""
        self.turns_per_period = turns_per_period(weights)
        self.period = sum(self.turns_per_period)
        self._sources = np.array(_earliest_deadline_first(self.turns_per_period), dtype=np.int64)
        self._turns = np.array(self.turns_per_period, dtype=np.int64)
        self._before = np.empty(self.period, dtype=np.int64)
        for source in range(len(weights)):
            mine = self._sources == source
            self._before[mine] = np.arange(int(mine.sum()))

    def __call__(self, positions: NDArray[np.int64]) -> Turns:
        """Return whose turn each position is: [N] -> [N], [N]."""
        periods, places = np.divmod(positions, self.period)
        sources = self._sources[places]
        return Turns(sources, periods * self._turns[sources] + self._before[places])

    def counts(self, num_positions: int) -> NDArray[np.int64]:
        """Return how many of the first positions each source has: [K]."""
        periods, place = divmod(num_positions, self.period)
        return periods * self._turns + np.bincount(self._sources[:place], minlength=len(self._turns))


@final
class ScheduledInterleave:
    """Turns for weights with changes at some positions; each phase keeps to its weights from its own first position."""

    def __init__(self, phases: Sequence[Placed]) -> None:
        """Take (first position, weights) of each phase, ascending, the first from 0."""
        assert phases[0][0] == 0, phases
        self._starts = np.array([start for start, _ in phases], dtype=np.int64)
        self._phases = [Interleave(weights) for _, weights in phases]
        self._counts_before = [np.zeros(len(phases[0][1]), np.int64)]
        for phase, length in zip(self._phases[:-1], np.diff(self._starts).tolist(), strict=True):
            self._counts_before.append(self._counts_before[-1] + phase.counts(length))

    def __call__(self, positions: NDArray[np.int64]) -> Turns:
        """Return whose turn each position is: [N] -> [N], [N]."""
        phases = self._starts.searchsorted(positions, side="right") - 1
        turns = Turns(np.empty_like(positions), np.empty_like(positions))
        for phase in np.unique(phases).tolist():
            here = phases == phase
            sources, indices = self._phases[phase](positions[here] - self._starts[phase])
            turns.sources[here] = sources
            turns.indices[here] = indices + self._counts_before[phase][sources]
        return turns

    def counts(self, num_positions: int) -> NDArray[np.int64]:
        """Return how many of the first positions each source has: [K]."""
        phase = max(0, int(self._starts.searchsorted(num_positions, side="right")) - 1)
        return self._counts_before[phase] + self._phases[phase].counts(num_positions - int(self._starts[phase]))


def phases_going_on(planned: Sequence[Placed], *, earlier: Sequence[Placed], until: int) -> list[Placed]:
    """Return the phases of a run that read up to position `until` by `earlier` ones, and goes on by `planned` ones.

    Of another number of steps the planned phases lie elsewhere; what was read stays read. Earlier phases of another
    number of sources are nobody's.
    """
    if any(len(weights) != len(planned[0][1]) for _, weights in earlier):
        return list(planned)
    past = [phase for phase in earlier if phase[0] < until]
    if not past or past == [phase for phase in planned if phase[0] < until]:
        return list(planned)
    weights = [phase for phase in planned if phase[0] <= until][-1][1]
    ahead = [phase for phase in planned if phase[0] > until]
    return [*past, *([] if weights == past[-1][1] else [(until, weights)]), *ahead]


def turns_per_period(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the smallest whole numbers in the proportion of the weights; of sum 65,536, and rounded, if none smaller.

    Raises:
        ValueError: A weight is too small compared with the others for a single turn.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    period = math.lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return tuple(int(share * period) for share in shares)
    turns = [math.floor(share * MAX_PERIOD) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda source: turns[source] - shares[source] * MAX_PERIOD)
    for source in by_rest[: MAX_PERIOD - sum(turns)]:
        turns[source] += 1
    for source, share in enumerate(shares):
        if share and not turns[source]:
            raise ValueError(f"weight {weights[source]} is below 1/{MAX_PERIOD:,} of the sum of all")
    return tuple(turns)


def _earliest_deadline_first(turns: Sequence[int]) -> list[int]:
    """Return the source of each position of a period with `turns[k]` turns of source k."""
    period = sum(turns)
    waiting = [(0, source, 0) for source, num_turns in enumerate(turns) if num_turns]  # from when on, source, turn
    due: list[tuple[int, int, int]] = []  # until when, source, turn
    order: list[int] = []
    for position in range(period):
        while waiting and waiting[0][0] <= position:
            _, source, turn = heapq.heappop(waiting)
            heapq.heappush(due, (-(-(turn + 1) * period // turns[source]), source, turn))
        _, source, turn = heapq.heappop(due)
        order.append(source)
        if turn + 1 < turns[source]:
            heapq.heappush(waiting, ((turn + 1) * period // turns[source], source, turn + 1))
    return order
