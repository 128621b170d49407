"""Loops measured in groups that take turns: all at once, or two at a time where a device holds no more."""

from collections.abc import Callable, Iterator, Sequence

from benchmarks.harness.train_step.driver import Contestant, measure
from benchmarks.harness.train_step.loops import LOOPS, counterpart
from benchmarks.harness.train_step.table import Row, rows
from benchmarks.harness.train_step.task import Task


def measured_rows(
    names: Sequence[str],
    task: Task,
    *,
    starts: int = 1,
    rounds: int,
    tell: Callable[[str], None],
    peak_flops: float,
    matmul_flops: float,
    in_pairs: bool,
) -> Iterator[Row]:
    """Yield a row for each loop; of a loop that is in several pairs, that of the first."""
    known: set[str] = set()
    for group in groups(names, in_pairs=in_pairs):
        found = measured(group, task, starts=starts, rounds=rounds, tell=tell)
        for row in rows(found, task, peak_flops=peak_flops, matmul_flops=matmul_flops):
            if row["loop"] not in known:
                yield row
            known.add(row["loop"])


def measured(
    names: Sequence[str], task: Task, *, starts: int, rounds: int, tell: Callable[[str], None]
) -> list[Contestant]:
    """Measure the loops together, each in as many processes one after another as there are starts.

    Two processes of one loop may differ by 2 to 3 % on a shared CPU: turns of one start do not average that. A loop
    that failed is not started again.
    """
    found: list[Contestant] = []
    for number in range(starts):
        if starts > 1:
            tell(f"start {number + 1} of {starts}")
        going = [one for one in found if one.is_running]
        again = measure([one.name for one in going] if found else names, task, rounds=rounds, tell=tell)
        for one, other in zip(going, again, strict=bool(found)):
            one.join(other)
        found = found or again
    return found


def groups(names: Sequence[str], *, in_pairs: bool) -> list[list[str]]:
    """Return which loops take turns with one another: all, or each beside our Trainer of what it trains."""
    if not in_pairs:
        return [list(names)]
    trainers = {counterpart(name, "trainer") for name in names} & set(names)
    pairs = [[counterpart(name, "trainer"), name] for name in names if LOOPS[name].module != "trainer"]
    alone = [[name] for name in names if name in trainers and not any(name in pair for pair in pairs)]
    return [[name for name in pair if name in names] for pair in pairs] + alone
