"""Learning speed: bits per byte after 120 s of two cores, lmtrain's default against nanoGPT, litgpt and nanochat.

A busy machine stretches seconds, so seconds become steps first. Phase 1 times a step of every loop in turns (two
threads, compiled, warm) and converts 120 s of the idle machine into so many steps of each. Phase 2 trains each loop for
exactly so many, its own schedule laid over them, with several seeds; what else the machine does then changes nothing.
A run that has finished is not trained again, so that an interrupted benchmark goes on where it was.

    python benchmarks/questions/learning_speed.py --peers CHECKOUTS                     # all: about an hour of one core
    python benchmarks/questions/learning_speed.py --peers CHECKOUTS --ms-per-step ours=116  # known from an idle machine
    python benchmarks/questions/learning_speed.py --only-report ...                     # of the runs that have finished

Needs the checkouts nanoGPT, litgpt and nanochat in CHECKOUTS, and jsonargparse for litgpt.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.learning_speed.report import keep
from benchmarks.harness.learning_speed.speed import clock_of, environment, measure, milliseconds_per_step, steps_in
from benchmarks.harness.learning_speed.task import LearningTask
from benchmarks.harness.train_step.task import Unavailable
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks/results/learning_speed_zen4_2cores_202611"
OURS, PEERS = "ours", {"nanochat": "nanochat", "litgpt": "litgpt", "nanogpt": "nanoGPT"}  # and their checkouts
SWEEP_SHARE, ABLATION_SHARE = 4, 3  # a factor is tried at a quarter of the steps, an ablation at a third


@dataclass(frozen=True)
class RunName:
    """What tells one training run from another, and names its file."""

    loop: str
    num_steps: int
    seed: int
    lr_factor: float = 1.0
    words: tuple[str, ...] = ()
    num_points: int = 10

    def file(self, folder: Path) -> Path:
        """Return where its result is."""
        words = "".join(f"_{word}" for word in self.words)
        return folder / f"{self.loop}_{self.num_steps}_seed{self.seed}_lr{self.lr_factor:g}{words}.json"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="folder of checkouts: nanoGPT, litgpt, nanochat")
    parser.add_argument("--loops", nargs="*", default=[*PEERS], choices=[*PEERS], help="which take part beside ours")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the idle machine (%(default)s)")
    known = "LOOP=MS known from the idle machine; ours is else the least of its turns, others follow by their ratios"
    parser.add_argument("--ms-per-step", nargs="+", default=[], type=named_number, help=known)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--factors", type=float, nargs="+", default=[0.5, 1.0, 2.0], help="of a peer's learning rates")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each loop in phase 1 (%(default)s)")
    parser.add_argument("--turn-steps", type=int, default=10, help="steps of a turn (%(default)s)")
    threads = "of phase 1 (%(default)s); one is timed by CPU seconds, for a busy machine; phase 2 has one"
    parser.add_argument("--threads", type=int, default=2, help=threads)
    parser.add_argument("--ablate", nargs="*", default=[], help="overrides of the default, a word or several at once")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "runs/learning_speed", help="of finished runs (%(default)s)"
    )
    parser.add_argument("--result", type=Path, default=RESULT, help="page, JSON and plot, without their suffix")
    parser.add_argument("--only-report", action="store_true", help="measure and train nothing")
    arguments = parser.parse_args()
    arguments.loops = [OURS, *arguments.loops]
    return arguments


def named_number(word: str) -> tuple[str, float]:
    """Read LOOP=NUMBER."""
    name, _, number = word.partition("=")
    if name not in (OURS, *PEERS) or not number.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(
            f"{word} is not LOOP=MS, such as {OURS}=116; loops: {OURS}, {', '.join(PEERS)}"
        )
    return name, float(number)


def make_task(arguments: argparse.Namespace) -> LearningTask:
    """Prepare the default data, unless it is there, and say what is learnt."""
    config = read_config(compose_config([f"data.folder.root={ROOT / 'data'}"])).checked()
    node = config.data.node("folder")
    assert node is not None
    folder = node.build()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    return LearningTask(
        num_layers=4,
        num_heads=2,
        vocab_size=4096,
        context_tokens=256,
        num_sequences=8,
        device="cpu",
        precision="bf16_mixed",
        is_compiled=True,
        threads=arguments.threads,
        warm_up_steps=5,
        turn_steps=arguments.turn_steps,
        max_steps=0,
        data_root=str(ROOT / "data"),
        tokens_file="",
        peers=str(Path(arguments.peers).absolute()) if arguments.peers else "",
        scratch=str(arguments.folder.absolute()),
        folder=str(folder),
        seed=1,
    )


def require_checkouts(loops: Sequence[str], task: LearningTask) -> None:
    """End before anything is measured where a peer is missing."""
    try:
        for loop in loops:
            if loop != OURS:
                task.checkout(PEERS[loop])
    except Unavailable as problem:
        sys.exit(f"{problem}; --loops names those that take part")


def speed_of(arguments: argparse.Namespace, task: LearningTask) -> dict[str, Any]:
    """Measure phase 1, or read what it measured."""
    path = arguments.folder / "speed.json"
    if arguments.only_report and not path.exists():
        sys.exit(f"--only-report: {arguments.folder} has no runs; name another --folder, or leave --only-report out")
    if not path.exists():
        found = measure(arguments.loops, task, rounds=arguments.rounds, tell=say)
        path.write_text(json.dumps({"threads": task.threads, "turn_steps": task.turn_steps, "loops": found}) + "\n")
    return json.loads(path.read_text())


def train(name: RunName, arguments: argparse.Namespace, task: LearningTask) -> dict[str, Any] | None:
    """Train one run, unless it has finished, and return its result; None where only a report is asked for."""
    path = name.file(arguments.folder.absolute())
    if not path.exists() and not arguments.only_report:
        say(f"training {path.stem}")
        told = replace(
            task,
            threads=1,
            max_steps=name.num_steps,
            num_points=name.num_points,
            seed=name.seed,
            lr_factor=name.lr_factor,
            words=name.words,
        )
        told.save(path.with_suffix(".task"))
        words = ["-m", "benchmarks.harness.learning_speed.worker", name.loop, path.with_suffix(".task"), path]
        with path.with_suffix(".log").open("wb") as log:
            subprocess.run(
                [sys.executable, *words], check=False, stdout=log, stderr=log, env=environment(told), cwd=told.scratch
            )
        if not path.exists():
            sys.exit(f"{path.stem} did not finish; see {path.with_suffix('.log')}")
    return json.loads(path.read_text()) if path.exists() else None


def sweep(loop: str, num_steps: int, arguments: argparse.Namespace) -> list[RunName]:
    """Return the runs that choose a peer's learning rates; ours has none."""
    factors = [] if loop == OURS else arguments.factors
    return [RunName(loop, num_steps // SWEEP_SHARE, arguments.seeds[0], factor, num_points=1) for factor in factors]


def best_factor(results: list[dict[str, Any]]) -> float:
    """Return the factor with the lowest bits per byte; 1 where nothing was swept."""
    return min(results, key=lambda one: one["bits_per_byte"])["lr_factor"] if results else 1.0


def all_runs(arguments: argparse.Namespace, task: LearningTask, steps: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Train every run, those first that say most."""
    factors: dict[str, float] = {}
    for seed in arguments.seeds:
        for loop in arguments.loops:
            if loop not in factors:
                found = [train(name, arguments, task) for name in sweep(loop, steps[loop], arguments)]
                swept = [one for one in found if one]
                factors[loop] = best_factor(swept)
                yield from ({**one, "part": "sweep"} for one in swept)
            if run := train(RunName(loop, steps[loop], seed, factors[loop]), arguments, task):
                yield {**run, "part": "race"}
    ablated = [(), *(tuple(words.split()) for words in arguments.ablate)] if arguments.ablate else []
    for words in ablated:
        name = RunName(OURS, steps[OURS] // ABLATION_SHARE, arguments.seeds[0], words=words, num_points=1)
        if run := train(name, arguments, task):
            yield {**run, "part": "ablation", "words": list(words)}


def say(line: str) -> None:
    """Tell how it goes."""
    print(line, file=sys.stderr, flush=True)


def command(arguments: argparse.Namespace) -> str:
    """Return what was typed, without the paths of this machine."""
    paths = {arguments.peers: "CHECKOUTS", str(arguments.folder): "FOLDER", str(arguments.result): "RESULT"}
    words = [paths.get(word, word) for word in sys.argv[1:] if word != "--only-report"]
    return f"python benchmarks/questions/learning_speed.py {shlex.join(words)}"


def main() -> None:
    """Measure, train, and write page, JSON and plot after each run."""
    arguments = parse()
    task = make_task(arguments)
    if not arguments.only_report:
        require_checkouts(arguments.loops, task)
    speed, known = speed_of(arguments, task), dict(arguments.ms_per_step)
    milliseconds = milliseconds_per_step(speed["loops"], clock=clock_of(speed["threads"]), base=OURS, known=known)
    steps = {loop: steps_in(arguments.seconds, ms) for loop, ms in milliseconds.items()}
    facts = {"command": command(arguments), "seconds": arguments.seconds, **speed}
    facts |= {"known_ms_per_step": known, "ms_per_step": milliseconds}
    runs: list[dict[str, Any]] = []
    for run in all_runs(arguments, task, steps):
        runs.append(run)
        say(f"{run['part']}: {run['loop']} seed {run['seed']} rates x {run['lr_factor']:g}: {run['bits_per_byte']:.4f}")
        if any(one["part"] == "race" for one in runs):
            keep(runs, facts, arguments.result)


if __name__ == "__main__":
    main()
