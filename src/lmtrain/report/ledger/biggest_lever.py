"""The change that saves a run most of its time: less of one kind, a slow rank mended, or compiled steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.observed.time_accounts import COMPUTE, LEVERS, TimeBalance, kind_words
from lmtrain.report.ledger.slow_ranks import MOST_SHOWN, SlowRanks

# Of an eager run's computing, and the first compilation: benchmarks/results/compile_zen4_2cores_202611.md, which has
# 20% by the block and 32% of a whole model.
EAGER_SAVES: Final = 0.2
COMPILING_SECONDS: Final = 61.0
WAITED_FOR: Final = "communication"  # the other ranks' waits are on this account
EAGER_ADVICE: Final = "compile=auto takes a minute or two once, and a fifth or more off each step"
RANK_ADVICE: Final = "the others wait for {}; `lmtrain doctor` on that machine names other work and a slow device"


@dataclass(frozen=True, kw_only=True)
class Lever:
    """Seconds that a change saves at most, of those spent so far."""

    name: str
    seconds: float
    advice: str


def biggest_lever(
    time: TimeBalance, *, by_rank: SlowRanks | None, steps_done: int, num_steps: int, is_compiled: bool | None
) -> str | None:
    """Name the lever with the most seconds, its share of the clock, and its remedy; None where all are zero."""
    slow = _slow_ranks(time.seconds, by_rank, steps_done=steps_done)
    eager = _eager(time.seconds, steps_done=steps_done, num_steps=num_steps) if is_compiled is False else None
    known = [each for each in (slow, eager) if each is not None]
    for kind, advice in LEVERS.items():
        waited = slow.seconds if slow and kind == WAITED_FOR else 0.0
        seconds = time.seconds.get(kind, 0.0) - waited
        known.append(Lever(name=kind_words(kind), seconds=seconds, advice=advice))
    found = max(known, key=lambda lever: lever.seconds)
    return f"{found.name} {found.seconds / time.wall_seconds:.0%}: {found.advice}" if found.seconds > 0 else None


def _slow_ranks(spent: Mapping[str, float], found: SlowRanks | None, *, steps_done: int) -> Lever | None:
    """Return the excess of the slowest rank's steps over the median, None where none is slow."""
    if found is None or not found.slow:
        return None
    steps = spent.get(COMPUTE, 0.0) + spent.get(WAITED_FOR, 0.0)
    names = ", ".join(f"rank {one.rank} ({found.cause(one)})" for one in found.slow[:MOST_SHOWN])
    excess = (found.slow[0].own - found.median) * steps_done
    name = "slow rank" if len(found.slow) == 1 else "slow ranks"
    return Lever(name=name, seconds=min(excess, steps), advice=RANK_ADVICE.format(names))


def _eager(spent: Mapping[str, float], *, steps_done: int, num_steps: int) -> Lever | None:
    """Return the gain of compiled steps, None where the whole run is too short for compiling to pay."""
    saved = EAGER_SAVES * spent.get(COMPUTE, 0.0)
    if not steps_done or saved / steps_done * num_steps < COMPILING_SECONDS:
        return None
    return Lever(name="eager mode", seconds=saved, advice=EAGER_ADVICE)
