"""Compare plans with facts on this machine: measure the MFU, plan, train, read the ledger, some times over.

    python benchmarks/questions/plan_vs_actual.py --rounds 3 --folder FOLDER --hardware zen4_2cores [OVERRIDES ...]

Each round measures the MFU with `lmtrain bench`, asks `lmtrain plan` for the time of a run, trains it, and reads where
its time went with `lmtrain ledger`. A plan has the steps and validation; compared are the plan and the clock without
the start. Rounds are kept in the folder: the same command goes on after a
stop. Exits 1 where the middle round is off by more than a tenth, or a ledger does not add to 100%.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
RUN = [
    *("model=llama_micro", "tokenizer=bpe_1024", "precision=fp32", "compile=none"),
    *("batch.context_tokens=128", "batch.tokens_per_step=1024", "budget.steps=600"),
    *("logger=none", "callbacks.text_samples=null"),
]
WITHIN = 0.10


@dataclass(frozen=True)
class Round:
    """Seconds planned, and the ledger's: on the clock, of these the start, and what its kinds add to as a share."""

    planned_seconds: float
    clock_seconds: float
    setup_seconds: float
    sum_of_kinds: float
    reasons: dict[str, float]

    @property
    def ratio(self) -> float:
        """Return the clock without the start, over the plan."""
        return (self.clock_seconds - self.setup_seconds) / self.planned_seconds

    @property
    def adds_up(self) -> bool:
        """Return whether every second has a kind."""
        return abs(self.sum_of_kinds - 1) < 1e-3


def main() -> int:
    """Play the rounds that are missing, print them all, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, required=True, help="of runs, data and finished rounds")
    parser.add_argument("--hardware", help="writes results/plan_vs_actual_HARDWARE_YYYYMM.md")
    asked, overrides = parser.parse_known_args()
    words = words_of(asked.folder, [*RUN, *overrides])
    kept = asked.folder / "rounds.jsonl"
    if not kept.exists():
        lmtrain("train", *words, "budget.steps=20", "run.name=warm_up")  # prepares the data, which is in no plan
        kept.touch()
    found = [Round(**json.loads(line)) for line in kept.read_text().splitlines()]
    while len(found) < asked.rounds:
        found.append(one_round(asked.folder, words, number=len(found)))
        with kept.open("a") as file:
            file.write(json.dumps(asdict(found[-1])) + "\n")
        print(row(len(found), found[-1]), flush=True)
    text = page(found, [*RUN, *overrides])
    print(text)
    if asked.hardware:
        name = f"plan_vs_actual_{asked.hardware}_{time.strftime('%Y%m')}.md"
        (RESULTS / name).write_text(text)
    middle = statistics.median(each.ratio for each in found)
    return int(abs(middle - 1) > WITHIN or not all(each.adds_up for each in found))


def one_round(folder: Path, words: list[str], *, number: int) -> Round:
    """Measure, plan, train, compare."""
    name = f"round_{number}"
    measured = json.loads(lmtrain("bench", "--json", *words))
    known = [f"cluster.peak_flops={measured['peak']['flops']}", f"cluster.mfu={measured['mfu']['palm']}"]
    planned = json.loads(lmtrain("plan", "--json", *words, *known))
    lmtrain("train", *words, "resume=never", f"run.name={name}")
    ledger: dict[str, Any] = json.loads(lmtrain("ledger", str(folder / name), "--json"))
    return Round(
        planned_seconds=planned["time"]["hours"] * 3600,
        clock_seconds=ledger["wall_seconds"],
        setup_seconds=ledger["seconds"]["setup"],
        sum_of_kinds=sum(ledger["seconds"].values()) / ledger["wall_seconds"],
        reasons=ledger["plan_and_fact"]["reasons"],
    )


def page(found: list[Round], words: list[str]) -> str:
    """Write all rounds as a page."""
    middle = statistics.median(each.ratio for each in found)
    return "\n".join(
        [
            "# Plan compared with fact",
            "",
            f"Written by `python benchmarks/questions/plan_vs_actual.py`; the run: `{' '.join(words)}`. Planned are "
            "steps and validation at the MFU of `lmtrain bench`; taken is the clock of `lmtrain ledger` without the "
            "start. The kinds of a ledger add up to its clock.",
            "",
            "| round | planned, s | taken, s | taken / planned | clock, s | start, s | kinds add to | reasons |",
            "|---|---|---|---|---|---|---|---|",
            *(row(number, each) for number, each in enumerate(found, start=1)),
            "",
            f"The middle round took {middle:.3f} of its plan.",
            "",
        ]
    )


def row(number: int, each: Round) -> str:
    """Write one round with the two largest reasons next to the start."""
    others = [(name, seconds) for name, seconds in each.reasons.items() if name != "setup"][:2]
    reasons = ", ".join(f"{name.replace('_', ' ')} {seconds:+.1f} s" for name, seconds in others)
    taken = each.clock_seconds - each.setup_seconds
    return (
        f"| {number} | {each.planned_seconds:.1f} | {taken:.1f} | {each.ratio:.3f} | {each.clock_seconds:.1f} | "
        f"{each.setup_seconds:.1f} | {each.sum_of_kinds:.1%} | {reasons} |"
    )


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
    sys.exit(main())
