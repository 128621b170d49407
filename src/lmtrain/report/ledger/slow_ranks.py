"""Each rank's own work in the traced steps, its waits for others left out: the slowest ranks of a run."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.tracking.timekeeping.events import TRACED

SLOW: Final = 1.1  # times the median
MOST_SHOWN: Final = 8


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """Seconds of a step: a rank's computing, its waits for data, and for the other ranks."""

    rank: int
    computing: float
    data_wait: float
    waiting: float

    @property
    def own(self) -> float:
        """Return the seconds of its own work, awaited by the others."""
        return self.computing + self.data_wait


@dataclass(frozen=True, kw_only=True)
class SlowRanks:
    """The ranks of a run, slowest first, over so many traced steps."""

    ranks: tuple[RankTime, ...]
    num_steps: int

    @property
    def median(self) -> float:
        """Return the usual own time."""
        return statistics.median_low([one.own for one in self.ranks])

    @property
    def slow(self) -> list[RankTime]:
        """Return the ranks with more than 1.1 times the median's own time."""
        return [one for one in self.ranks if one.own > SLOW * self.median]

    def cause(self, one: RankTime) -> str:
        """Name the part with the larger excess."""
        usual = statistics.median_low([other.data_wait for other in self.ranks])
        return "data wait" if one.data_wait - usual > (one.own - self.median) / 2 else "computing"

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers."""
        slowest = [asdict(one) | {"own": one.own} for one in self.ranks[:MOST_SHOWN]]
        return {
            "num_ranks": len(self.ranks),
            "traced_steps": self.num_steps,
            "median_own_seconds": self.median,
            "slow": [one.rank for one in self.slow],
            "slowest": slowest,
        }


def slow_ranks(rows_of_ranks: Iterable[tuple[int, Sequence[dict[str, Any]]]]) -> SlowRanks | None:
    """Compare ranks by their events' rows; None for fewer than two with a traced step in the newest attempt."""
    traced = [(rank, _newest_attempt(rows)) for rank, rows in rows_of_ranks]
    times = [_time_of(rank, rows) for rank, rows in traced if any(row["name"] == TRACED for row in rows)]
    if len(times) < 2:
        return None
    num_steps = max(sum(row["name"] == TRACED for row in rows) for _, rows in traced)
    return SlowRanks(ranks=tuple(sorted(times, key=lambda one: -one.own)), num_steps=num_steps)


def _time_of(rank: int, rows: Sequence[dict[str, Any]]) -> RankTime:
    steps = [row for row in rows if row["name"] == TRACED]
    readings = [row for row in rows if row["name"] == "ledger"]
    last = readings[-1] if readings else {}
    num_steps = last.get("step", 0) - (readings[0]["step"] if readings else 0)
    return RankTime(
        rank=rank,
        computing=statistics.mean(row["own_seconds"] for row in steps),
        data_wait=last.get("data_wait", 0.0) / num_steps if num_steps else 0.0,
        waiting=statistics.mean(row["waiting_seconds"] for row in steps),
    )


def _newest_attempt(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    starts = [index for index, row in enumerate(rows) if row["name"] == "attempt"]
    return rows[starts[-1] :] if starts else rows


def rank_of(path: Path) -> int:
    """Return the rank whose events a file holds."""
    return int(path.stem.removeprefix("rank"))
