"""A day under a scheduler that kills at random every few minutes: the ledger's goodput, and the plan's of before.

The runs are real: each is killed by SIGKILL at a random moment, in a start, a step or a save, and the same job with
`resume=auto` is started again, until the day is over; checkpoints, events and ledger are those of any run. The clock
alone is simulated: a start, a step and a save take as long as stated, so that a day takes minutes. `lmtrain plan` is
asked first, with the failure rate as the cluster's.

    python benchmarks/questions/preempted_day.py --json preempted_day.json
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.harness.reliability import warm_starts  # noqa: E402
from benchmarks.harness.reliability.outcome import read_losses  # noqa: E402
from lmtrain.report.ledger.run_ledger import read_ledger  # noqa: E402
from lmtrain.run.execution import run as run_module  # noqa: E402
from lmtrain.tracking.timekeeping import preemption  # noqa: E402
from lmtrain.training.checkpointing.state_file import WriteState  # noqa: E402
from lmtrain.training.optimizer_step import OptimizerStep  # noqa: E402

IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a file system without a disk
MOST_STEPS: Final = 1_000_000  # more than a day has


@dataclass(kw_only=True)
class Clock:
    """A simulated time.monotonic: it moves where a part of a run takes its stated time, and kills when it is due."""

    now: float
    kill_at: float

    def advance(self, seconds: float) -> None:
        """Let time pass, and end the process in the middle of it if it is due."""
        if self.now + seconds >= self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.now += seconds

    def start(self, asked: argparse.Namespace) -> None:
        """Take the place of this process's clock, and give a start, a step and a save their time."""
        time.monotonic = lambda: self.now
        preemption.waited_seconds = lambda threads=None: {}  # this machine's own load is no part of the day
        run_module.fit = self._before(run_module.fit, asked.start_seconds)
        OptimizerStep.prepare = self._before(OptimizerStep.prepare, asked.step_seconds)
        WriteState.__call__ = self._before(WriteState.__call__, asked.save_seconds)

    def _before(self, action: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def timed(*arguments: Any, **settings: Any) -> Any:
            self.advance(seconds)
            return action(*arguments, **settings)

        return timed


def day(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Kill and restart a run for a day, and return its accounts beside the plan's."""
    words = [*warm_starts.WORDS, "~callbacks.validation", f"budget.steps={MOST_STEPS}",
             f"callbacks.checkpoint.every_seconds={asked.every_seconds}"]  # fmt: skip
    words.remove("callbacks.checkpoint.every_seconds=null")
    planned = _plan(words, asked)
    job, rng, kills = warm_starts.compose(words), random.Random(asked.seed), 0
    began = now = time.monotonic()
    end = began + asked.hours * 3600
    while now < end:
        kill_at = min(end, now + rng.expovariate(1 / (60 * asked.minutes_apart)))
        clock = Clock(now=now, kill_at=kill_at)
        ended = warm_starts.train(job, folder=folder, before=lambda clock=clock: clock.start(asked))
        if ended.code != -signal.SIGKILL:
            raise RuntimeError(f"the run ended with {ended.code}: {ended.said[-2000:]}")
        kills, now = kills + 1, kill_at
    ledger = read_ledger(folder / "a")
    steps = max(read_losses(folder / "a"))
    return {
        "hours": asked.hours, "minutes_between_kills": asked.minutes_apart, "kills": kills,
        "attempts": ledger.time.num_attempts,
        "start_seconds": asked.start_seconds, "step_seconds": asked.step_seconds, "save_seconds": asked.save_seconds,
        "save_every_seconds": asked.every_seconds, "steps": steps,
        "goodput": {
            "ledger": round(ledger.time.goodput, 4),
            "last_step_x_step_seconds_of_the_day": round(steps * asked.step_seconds / (end - began), 4),
            "planned": round(planned["goodput"], 4),
        },
        "ledger_hours": {kind: round(seconds / 3600, 3) for kind, seconds in ledger.time.seconds.items()},
    }  # fmt: skip


def _plan(words: list[str], asked: argparse.Namespace) -> dict[str, Any]:
    """Ask another process for the plan, and return its checkpoints: this one is to compute nothing."""
    ask = "import sys; from lmtrain.cli.commands.plan import plan; sys.exit(plan(sys.argv[1:]))"
    more = [
        f"cluster.device_hours_per_failure={asked.minutes_apart / 60}",
        f"cluster.restart_seconds={asked.start_seconds}",
        "--json",
    ]
    told = subprocess.run(
        [sys.executable, "-c", ask, *words, *more],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    return json.loads(told.stdout)["checkpoints"]


def main() -> int:
    """Simulate the day and print its figures; exit code 1 below 90 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--minutes-apart", type=float, default=5.0, help="mean between two kills")
    parser.add_argument("--start-seconds", type=float, default=8.0, help="from the command to the first step")
    parser.add_argument("--step-seconds", type=float, default=10.0)
    parser.add_argument("--save-seconds", type=float, default=0.1, help="a save's stall")
    parser.add_argument("--every-seconds", type=float, default=20.0, help="between two saves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, default=IN_MEMORY if IN_MEMORY.is_dir() else None)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    warm_starts.import_the_trainer()
    folder = Path(tempfile.mkdtemp(prefix="preempted_day_", dir=asked.scratch))
    figures = day(asked, folder)
    shutil.rmtree(folder)
    print(json.dumps(figures, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(figures["goodput"]["ledger"] < 0.9)


if __name__ == "__main__":
    sys.exit(main())
