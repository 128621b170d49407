"""Real processes killed at random moments, and the same command again: are losses, weights and state the same?

Each run is sent SIGKILL after a random share of an untouched run's time, one to three times, and started again after
each; then its losses, weights and optimizer state are held against the untouched run's, bit for bit. Some of the runs
change between one and two ranks at every start; sums in another order are then allowed 2e-6 of a loss. A start is a
fork of this process, which has the imports: about a second of CPU time.

    python benchmarks/questions/kills.py --kills 500 --json kills.json
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.harness.reliability.outcome import Outcome, difference, read_losses, read_outcome  # noqa: E402
from benchmarks.harness.reliability.warm_starts import WORDS, Ended, compose, import_the_trainer, train  # noqa: E402

STEPS: Final = 24
ACROSS_WORLD_SIZES: Final = 2e-6  # as tests/faults/test_resume.py
CHANGING: Final = "one rank or two at each start"
CHANGING_SHARE: Final = 0.06
KINDS: Final = {
    "every 3 steps": ["callbacks.checkpoint.every_steps=3"],
    "every step": ["callbacks.checkpoint.every_steps=1"],
    "behind, by another process": [
        "callbacks.checkpoint.every_steps=2",
        "callbacks.checkpoint.background_from_bytes=0",
    ],
    "two reader processes": ["callbacks.checkpoint.every_steps=4", "data.num_workers=2"],
    "accumulating, validating": [
        "callbacks.checkpoint.every_steps=4",
        "batch.micro_batch_sequences=1",
        "callbacks.validation.every_steps=5",
        "callbacks.validation.num_passes=null",
    ],
    # Muon makes more of the last bits, which other ranks sum in another order.
    CHANGING: ["callbacks.checkpoint.every_steps=3", "optimizer=adamw", "optimizer.lr=1e-3"],
}


class Campaign:
    """Runs killed at random, with the untouched ones they are held against."""

    def __init__(self, scratch: Path, *, seed: int) -> None:
        self._scratch, self._rng = scratch, random.Random(seed)
        self._seconds: dict[tuple[str, int], list[float]] = {}
        self._jobs: dict[tuple[str, int], Any] = {}
        self.kills, self.runs, self.problems = Counter[str](), Counter[str](), list[str]()
        self.steps_at_kill: list[int] = []
        self._untouched = {kind: self._train_untouched(kind) for kind in KINDS}

    def run(self, number: int) -> None:
        """Kill one run once to three times, let it end, and compare."""
        rng = self._rng
        changes = rng.random() < CHANGING_SHARE
        kind = CHANGING if changes else rng.choice([name for name in KINDS if name != CHANGING])
        folder = self._scratch / f"run{number}"
        self.runs[kind] += 1
        left = rng.randint(1, 3)
        while True:
            num_ranks = rng.choice((1, 2)) if changes else 1
            after = rng.uniform(0, self._usual_seconds(kind, num_ranks)) if left > 0 else None
            ended = self._start(kind, folder, num_ranks=num_ranks, kill_after=after)
            if ended.code == 0:
                break
            if ended.code != -9:
                self.problems.append(f"run {number} ({kind}) ended with {ended.code}: {ended.said[-2000:]}")
                return
            left -= 1
            self.kills[kind] += 1
            self.steps_at_kill.append(len(_losses_so_far(folder / "a")))
        found = read_outcome(folder / "a")
        problem = difference(found, self._untouched[kind], allowed=ACROSS_WORLD_SIZES if changes else 0.0)
        if problem:
            self.problems.append(f"run {number} ({kind}): {problem}")
        else:
            shutil.rmtree(folder)

    def _train_untouched(self, kind: str) -> Outcome:
        folder = self._scratch / f"untouched {kind}"
        ended = self._start(kind, folder)
        if ended.code:
            raise RuntimeError(f"the untouched run ({kind}) ended with {ended.code}: {ended.said[-2000:]}")
        return read_outcome(folder / "a")

    def _start(self, kind: str, folder: Path, *, num_ranks: int = 1, kill_after: float | None = None) -> Ended:
        if (kind, num_ranks) not in self._jobs:
            ranks = [f"trainer.devices={num_ranks}"] if num_ranks > 1 else []
            words = [*WORDS, *KINDS[kind], f"budget.steps={STEPS}", *ranks]
            self._jobs[kind, num_ranks] = compose(words, num_ranks=num_ranks)
        job, victim = self._jobs[kind, num_ranks], self._rng.randrange(num_ranks)
        ended = train(job, folder=folder, num_ranks=num_ranks, kill_after_seconds=kill_after, rank=victim)
        if ended.code == 0:
            self._seconds.setdefault((kind, num_ranks), []).append(ended.seconds)
        return ended

    def _usual_seconds(self, kind: str, num_ranks: int) -> float:
        """Return the time of a whole run lately: the machine may be busier than before."""
        return statistics.median(self._seconds.get((kind, num_ranks), self._seconds[kind, 1])[-5:])


def _losses_so_far(run: Path) -> dict[int, float]:
    try:
        return read_losses(run)
    except (OSError, ValueError):  # killed before its first line, or in the middle of one
        return {}


def report(campaign: Campaign, *, cpu_seconds: float) -> dict[str, Any]:
    """Return the figures."""
    steps = campaign.steps_at_kill
    return {
        "runs": sum(campaign.runs.values()),
        "kills": sum(campaign.kills.values()),
        "kills_by_kind": dict(campaign.kills),
        "kills_before_the_first_loss": steps.count(0),
        "different_steps_at_a_kill": len(set(steps)),
        "problems": campaign.problems,
        "cpu_seconds": round(cpu_seconds),
    }


def main() -> int:
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    import_the_trainer()
    scratch = Path(tempfile.mkdtemp(prefix="kills_", dir=asked.scratch))
    campaign, number = Campaign(scratch, seed=asked.seed), 0
    while sum(campaign.kills.values()) < asked.kills:
        campaign.run(number)
        number += 1
        figures = report(campaign, cpu_seconds=_children_cpu_seconds())
        if asked.json:
            asked.json.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"{figures['kills']} kills, {figures['runs']} runs, {len(campaign.problems)} problems", flush=True)
    print(json.dumps(report(campaign, cpu_seconds=_children_cpu_seconds()), indent=1))
    return 1 if campaign.problems else 0


def _children_cpu_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    sys.exit(main())
