"""DiLoCo beside DDP on two ranks of one machine: held-out bits per byte against tokens, and against bytes sent.

Workers meet every 10, 30 and 100 steps, with Muon and AdamW inside and deltas in bf16 and int8. It types what a person
would, `python train.py strategy=diloco ...`. A run that has finished is not trained again, so that an interrupted race
goes on where it was. Bytes are those of one rank: counted for deltas, those of the plan for DDP's gradients.

    python benchmarks/questions/diloco.py                          # three seeds: about an hour of two cores
    python benchmarks/questions/diloco.py --seeds 1 --steps 300    # about ten minutes
    python benchmarks/questions/diloco.py --only muon_plain        # one optimizer
    python benchmarks/questions/diloco.py --only-report            # table and plot of the runs that have finished
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness.diloco_page import Curve, Kind, draw, page

PROJECT: Final = Path(__file__).resolve().parents[2]
RESULT: Final = PROJECT / "benchmarks/results/diloco_xeon_2cores_202611"
OPTIMIZERS: Final = ("adamw_two_rates", "muon_plain")
EVERY_STEPS: Final = (10, 30, 100)
DELTAS: Final = ("bf16", "int8")
SENT: Final = "communication/sent_bytes"
SCORE: Final = "validation/bits_per_byte"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run of the race."""

    kind: Kind
    seed: int
    steps: int

    @property
    def name(self) -> str:
        """Return its folder's name."""
        return f"{'-'.join(map(str, self.kind)).lower()}-{self.steps}steps-seed{self.seed}"

    def words(self) -> list[str]:
        """Return what is typed."""
        optimizer, every_steps, delta = self.kind
        apart = ["strategy=diloco", f"strategy.every_steps={every_steps}", f"strategy.delta={delta}"]
        return [
            "experiment=optimizer_race",
            f"optimizer={optimizer}",
            *(apart if every_steps else ["strategy=ddp"]),
            f"seed={self.seed}",
            "budget.flops=null",
            f"budget.steps={self.steps}",
            "callbacks.validation.num_passes=10",
            "callbacks.validation.max_tokens=16_384",
            "callbacks.checkpoint=null",
            "callbacks.text_samples=null",
            "trainer.devices=2",
            "trainer.accelerator=cpu",
            "trainer.cpu_threads=1",
            "logger=none",
            f"run.name={self.name}",
        ]


def kinds() -> Iterator[Kind]:
    """Give DDP and every DiLoCo of each optimizer."""
    for optimizer in OPTIMIZERS:
        yield Kind(optimizer, 0, "fp32")
        for every_steps in EVERY_STEPS:
            for delta in DELTAS:
                yield Kind(optimizer, every_steps, delta)


def train(root: Path, trial: Trial) -> None:
    """Train what has not finished; a failure is told, and the race goes on."""
    if finished(root / trial.name):
        return
    paths = [str(PROJECT / "src"), str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    line = [sys.executable, PROJECT / "train.py", *trial.words(), f"run.root={root}"]
    subprocess.run(line, check=False, env=environment)


def finished(folder: Path) -> bool:
    """Tell whether a run came to its end."""
    status = folder / "status.json"
    return status.is_file() and json.loads(status.read_text())["status"] == "FINISHED"


def curve(folder: Path) -> Curve:
    """Return a run's (tokens, bytes sent by a rank, bits per byte), one for each validation."""
    planned = json.loads((folder / "plan.json").read_text())["communication"]["bytes_per_step"]
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    counted = {point["step"]: point["metrics"][SENT] for point in points if SENT in point["metrics"]}
    found: Curve = []
    for point in points:
        if SCORE in point["metrics"]:
            step = point["step"]
            so_far = [num_bytes for at, num_bytes in counted.items() if at <= step]
            sent = max(so_far, default=0.0) if counted else planned * step
            found.append((point["tokens"], sent, point["metrics"][SCORE]))
    return found


def main() -> None:
    """Train what is not trained, then write table and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (%(default)s)")
    parser.add_argument("--steps", type=int, default=1_000, help="of 1,024 tokens (%(default)s)")
    parser.add_argument("--only", default="", help="a part of the names of the runs to train")
    parser.add_argument("--root", type=Path, default=Path("runs/diloco"), help="folder of the runs (%(default)s)")
    parser.add_argument("--result", type=Path, default=RESULT, help="page and plot, without their suffix")
    parser.add_argument(
        "--hardware", default="two cores of an Intel Xeon that other work shared", help="as the page names it"
    )
    parser.add_argument("--only-report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    found: dict[Kind, list[Curve]] = {}
    for seed in range(1, arguments.seeds + 1):
        for kind in kinds():
            trial = Trial(kind=kind, seed=seed, steps=arguments.steps)
            if not arguments.only_report and arguments.only in trial.name:
                train(root, trial)
            if finished(root / trial.name):
                found.setdefault(kind, []).append(curve(root / trial.name))
    if not found:
        sys.exit(f"no run of {arguments.steps} steps has finished in {root}")
    draw(found, arguments.result.with_suffix(".png"))
    text = page(found, chart=arguments.result.with_suffix(".png").name, hardware=arguments.hardware)
    arguments.result.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
