"""What the Trainer and every default callback cost over a bare loop: the same model, batches and optimizer.

Both take turns inside one process: a few steps of the Trainer, as many of a hand-written loop on a twin model, and so
on, each measured in CPU seconds of this process (time.process_time): turns of a quarter of a second, so that what the
host does meets both alike, which it does not where processes take turns (train_step.py). MLflow's is another process.

    python benchmarks/questions/overhead.py                 # the ruler's shapes of 30 ms, eager and compiled: 6 minutes
    python benchmarks/questions/overhead.py --architecture llama --mode compiled batch.tokens_per_step=512
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from hydra.errors import HydraException
from typing_extensions import override

from benchmarks.harness.train_step.setting import make_task, positive
from benchmarks.harness.train_step.task import Architecture, Task
from benchmarks.peers.train_step.bare import BareSteps
from benchmarks.peers.train_step.ours import make_job, make_run
from benchmarks.peers.train_step.trainer import MORE
from lmtrain.errors import EXIT_CONFIGURATION, LMTRAIN_ERRORS
from lmtrain.training.module import CausalLMModule

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "gpt2", "nano")
MODES = ("eager", "compiled")
WARM_UP_TURNS = 3


class BareLoop(pl.Callback):
    """Take turns with the Trainer: after every `turn_steps` of its steps, train a twin as many by hand."""

    def __init__(self, task: Task) -> None:
        self.trainer_seconds: list[float] = []  # per step, one value a turn
        self.bare_seconds: list[float] = []
        self._task, self._turn_steps = task, task.turn_steps
        self._started = 0.0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, CausalLMModule)
        twin = copy.deepcopy(pl_module.language_model)  # leaves out what was compiled
        self._train = BareSteps(pl_module, twin, self._task)
        self._batches = iter(trainer.datamodule.train_dataloader())  # pyright: ignore[reportAttributeAccessIssue]
        self._started = time.process_time()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self._turn_steps:
            return
        self.trainer_seconds.append((time.process_time() - self._started) / self._turn_steps)
        started = time.process_time()
        for _ in range(self._turn_steps):
            self._train(next(self._batches))
        self.bare_seconds.append((time.process_time() - started) / self._turn_steps)
        self._started = time.process_time()

    def result(self) -> dict[str, float]:
        """Return milliseconds a step of each (medians), and the median of the turns' ratios."""
        trainer, bare = self.trainer_seconds[WARM_UP_TURNS:], self.bare_seconds[WARM_UP_TURNS:]
        ratios = [ours / theirs for ours, theirs in zip(trainer, bare, strict=True)]
        return {
            "trainer_milliseconds": 1e3 * statistics.median(trainer),
            "bare_milliseconds": 1e3 * statistics.median(bare),
            "difference_milliseconds": 1e3 * statistics.median(a - b for a, b in zip(trainer, bare, strict=True)),
            "ratio": statistics.median(ratios),
            "ratio_lower_quartile": statistics.quantiles(ratios, n=4)[0],
            "ratio_upper_quartile": statistics.quantiles(ratios, n=4)[2],
            "turns": len(ratios),
        }


def measure(arguments: argparse.Namespace, words: list[str], scratch: Path) -> dict[str, float]:
    """Train one model of one architecture and mode, the Trainer and the bare loop in turns."""
    torch.set_num_threads(arguments.threads)
    given = argparse.Namespace(
        device="cpu", shape="small", sequences=None, precision="fp32", peers="", warm_up_steps=1, **vars(arguments)
    )
    task = replace(
        make_task(given, scratch),
        is_compiled=arguments.mode == "compiled",
        max_steps=arguments.turn_steps * arguments.rounds,
    )
    bare = BareLoop(task)
    run = make_run(make_job(task, ["logger=none", *MORE, *words], name="overhead", architecture=arguments.architecture))
    run.trainer.callbacks.append(bare)  # pyright: ignore[reportAttributeAccessIssue]  # a list, always
    run.trainer.fit(run.module, datamodule=run.datamodule)
    return bare.result()


def measure_all(arguments: argparse.Namespace, words: list[str]) -> None:
    """Measure each in a process of its own and print a table."""
    columns = ["trains", "mode", "Trainer, ms", "bare, ms", "difference", "ratio (quartiles)", "turns"]
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    options = ["--rounds", arguments.rounds, "--turn-steps", arguments.turn_steps, "--threads", arguments.threads]
    for mode in [arguments.mode] if arguments.mode else MODES:
        for architecture in [arguments.architecture] if arguments.architecture else ARCHITECTURES:
            own = ["--architecture", architecture, "--mode", mode, "--json"]
            command = [sys.executable, __file__, *map(str, options), *own, *words]
            environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
            ran = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=environment)
            if ran.returncode:
                sys.exit(ran.returncode)  # it has said why
            one = json.loads(ran.stdout.splitlines()[-1])
            print(
                f"{head}| {architecture} | {mode} | {one['trainer_milliseconds']:.2f} | {one['bare_milliseconds']:.2f} "
                f"| {one['difference_milliseconds']:.2f} | {one['ratio']:.3f} ({one['ratio_lower_quartile']:.3f} to "
                f"{one['ratio_upper_quartile']:.3f}) | {one['turns']} |",
                flush=True,
            )
            head = ""


def main() -> None:
    """Measure and print a table, or one JSON object of one pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", choices=ARCHITECTURES, help="one alone")
    parser.add_argument("--mode", choices=MODES, help="one alone")
    parser.add_argument("--rounds", type=positive, default=83, help="turns of the Trainer and of the bare loop each")
    parser.add_argument("--turn-steps", type=positive, default=10, help="optimizer steps of one turn")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--json", action="store_true", help="one pair, as JSON")
    arguments, words = parser.parse_known_args()
    if arguments.rounds < WARM_UP_TURNS + 2:
        parser.error(f"--rounds {arguments.rounds} is below {WARM_UP_TURNS + 2}: {WARM_UP_TURNS} of them only warm up")
    if not arguments.json:
        measure_all(arguments, words)
        return
    if arguments.architecture is None or arguments.mode is None:
        parser.error("--json is of one --architecture and one --mode")
    with tempfile.TemporaryDirectory() as temporary:
        try:
            print(json.dumps(measure(arguments, words, Path(temporary))))
        except (HydraException, *LMTRAIN_ERRORS) as problem:
            parser.exit(getattr(problem, "exit_code", EXIT_CONFIGURATION), f"{str(problem).splitlines()[0]}\n")


if __name__ == "__main__":
    main()
