"""Hold plans against facts on this machine: calibrate, plan, train, read the ledger, some times over.

    python benchmarks/plan_and_fact.py [REPEATS] [OVERRIDES ...]

Each round calibrates anew with `lmtrain doctor --calibrate`, asks `lmtrain plan` for the time of a run, trains it, and
compares: with the clock as it was, and without what other work took from the process, which the ledger books apart.
Exits 1 where the middle round of either is off by more than a tenth.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OVERRIDES = ["budget.steps=1500", "resume=never", "logger=none", "callbacks.text_samples=null"]
WITHIN = 0.10


@dataclass(frozen=True)
class Round:
    """Seconds planned, on the clock, and of these the ones that other work took; and what the ledger's kinds add to."""

    planned_seconds: float
    clock_seconds: float
    preempted_seconds: float
    sum_of_kinds: float
    biggest_reason: str

    @property
    def clock_ratio(self) -> float:
        """Return the clock over the plan."""
        return self.clock_seconds / self.planned_seconds

    @property
    def own_ratio(self) -> float:
        """Return the time that this process had the processor, over the plan."""
        return (self.clock_seconds - self.preempted_seconds) / self.planned_seconds


def main(words: list[str]) -> int:
    """Print a line a round, then the middle one."""
    repeats, overrides = (int(words[0]), words[1:]) if words and words[0].isdigit() else (5, words)
    with tempfile.TemporaryDirectory(prefix="lmtrain-plan-and-fact-") as folder:
        # Prepares the data and compiles, which happens once and is in no plan.
        lmtrain("train", *words_of(Path(folder), [*OVERRIDES, *overrides, "budget.steps=20"]), "run.name=warm_up")
        rounds = [one_round(Path(folder), [*OVERRIDES, *overrides], number=number) for number in range(repeats)]
    clock, own = (
        statistics.median(values) for values in zip(*((r.clock_ratio, r.own_ratio) for r in rounds), strict=True)
    )
    print(f"\nmiddle of {repeats}: fact / plan {clock:.3f} on the clock, {own:.3f} without what other work took")
    return int(abs(clock - 1) > WITHIN or abs(own - 1) > WITHIN)


def one_round(folder: Path, overrides: list[str], *, number: int) -> Round:
    """Calibrate, plan, train, compare."""
    name = f"round_{number}"
    words = words_of(folder, overrides)
    lmtrain("doctor", "--calibrate", *words)
    planned = json.loads(lmtrain("plan", "--json", *words))
    lmtrain("train", *words, f"run.name={name}")
    ledger: dict[str, Any] = json.loads(lmtrain("ledger", str(folder / name), "--json"))
    found = Round(
        planned_seconds=planned["time"]["hours"] * 3600,
        clock_seconds=ledger["wall_seconds"],
        preempted_seconds=ledger["seconds"].get("preempted", 0.0),
        sum_of_kinds=sum(ledger["seconds"].values()) / ledger["wall_seconds"],
        biggest_reason=max(ledger["plan_and_fact"]["reasons"].items(), key=lambda each: abs(each[1]))[0],
    )
    print(
        f"{name}: planned {found.planned_seconds:.1f} s, took {found.clock_seconds:.1f} s ({found.clock_ratio:.3f}), "
        f"{found.preempted_seconds:.1f} s of it preempted ({found.own_ratio:.3f}); kinds add to "
        f"{found.sum_of_kinds:.2%}; most of the difference: {found.biggest_reason.replace('_', ' ')}",
        flush=True,
    )
    return found


def words_of(folder: Path, overrides: list[str]) -> list[str]:
    """Return the words of a run whose files all stay in a folder."""
    return [*overrides, f"run.root={folder}", f"run.cache={folder / 'cache'}", f"data.folder.root={folder / 'data'}"]


def lmtrain(verb: str, *words: str) -> str:
    """Run a command as it is typed and return what it prints."""
    command = [sys.executable, "-m", "lmtrain.cli", verb, *words]
    ended = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1):  # 1: something is worth knowing
        sys.exit(f"{' '.join(command)}: exit code {ended.returncode}\n{ended.stderr[-2000:]}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
