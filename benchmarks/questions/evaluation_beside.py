"""How much of its speed a run keeps while another process scores its checkpoints.

A run with `callbacks=[default,evaluate_aside]` and one without train the same steps on one thread, in turns, with
checkpoints as often; the scoring is under way nearly all the time. Needs a second core, and nothing else on the
machine: the speed is by the clock, from the run's own ledger, without set-up, compilation and its own validation.

    python benchmarks/questions/evaluation_beside.py            # about six minutes
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lmtrain.tracking.held_checkpoints import held

TRAINING = ("compute", "data_wait", "host_overhead", "logging", "checkpoint")
WORDS = [
    "model=llama_micro", "logger=none", "trainer.accelerator=cpu", "batch.tokens_per_step=2048", "budget=steps",
    "callbacks.validation.num_passes=null",
]  # fmt: skip


def train(root: Path, name: str, *, steps: int, every_steps: int, aside: bool) -> tuple[float, float, int]:
    """Return the seconds of a run's steps, the share with a scoring under way, and the number of scores."""
    callbacks = "[default,evaluate_aside]" if aside else "default"
    words = [
        *WORDS, f"callbacks={callbacks}", f"budget.steps={steps}", f"callbacks.checkpoint.every_steps={every_steps}",
        f"run.root={root}", f"run.name={name}", "trainer.cpu_threads=1",
    ]  # fmt: skip
    process = subprocess.Popen([sys.executable, "train.py", *words], stdout=subprocess.DEVNULL)
    folder, looks = root / name, [0, 0]
    while process.poll() is None:
        if (folder / "checkpoints").is_dir() and any((folder / "checkpoints").iterdir()):
            looks[0] += 1
            looks[1] += bool(aside and held(folder))
        time.sleep(0.25)
    if process.returncode:
        raise SystemExit(f"the run {folder} ended with {process.returncode}")
    while aside and held(folder):
        time.sleep(0.5)
    seconds = json.loads((folder / "ledger.json").read_text())["seconds"]
    scores = len([*(folder / "evaluation").glob("step_*.json")]) if aside else 0
    return sum(seconds.get(kind, 0.0) for kind in TRAINING), looks[1] / max(1, looks[0]), scores


def main() -> int:
    """Run in turns and print each pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    given = parser.parse_args()
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(given.turns):
            order = (False, True) if turn % 2 == 0 else (True, False)
            seconds, told = dict[bool, float](), ""
            for aside in order:
                seconds[aside], share, scores = train(
                    Path(scratch), f"turn{turn}-{'beside' if aside else 'alone'}", steps=given.steps,
                    every_steps=given.checkpoint_every, aside=aside,
                )  # fmt: skip
                if aside:
                    told = f"{scores} scores, one under way {share:.0%} of the time"
            ratios.append(seconds[False] / seconds[True])
            print(f"alone {seconds[False]:.2f} s, beside {seconds[True]:.2f} s: {ratios[-1]:.1%} of its speed; {told}")
    print(f"median {statistics.median(ratios):.1%} ({min(ratios):.1%} to {max(ratios):.1%}) of its speed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
