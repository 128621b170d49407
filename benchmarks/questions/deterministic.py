"""What deterministic=true costs: one model and optimizer, steps with and without it in turns, inside one process.

Turns are measured in process time, so that a busy machine hurts both alike; the switch acts from one step to the next.
On a GPU, wait for the device at the end of each turn and read the clock instead: --clock.

    python benchmarks/questions/deterministic.py                        # half a minute
    python benchmarks/questions/deterministic.py --rounds 40 --clock model.width=1024 trainer.accelerator=gpu
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.build import Run, build_run
from lmtrain.run.run_config import read_config
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.training.loop.determinism import ENVIRONMENT, be_deterministic
from lmtrain.training.module import materialize

SETTINGS = ["data=synthetic", "tokenizer=byte_level", "precision=fp32", "compile=none", "logger=none"]
WARM_UP_ROUNDS = 2


def build(words: list[str], folder: Path) -> tuple[Run, Callable[[], None]]:
    """Build the run that a command line describes, and a function that makes one step of it."""
    words = [*SETTINGS, f"data.folder.root={folder / 'data'}", *words]
    config = read_config(compose_config(words)).checked()
    job = Job(config=config, overrides=words, name="deterministic", root=str(folder / "runs"))
    RunFolder(job.folder, root=Path(job.root)).create()
    run = build_run(job, rank=1, log=None)
    device = torch.device("cuda" if config.trainer.accelerator == "gpu" else "cpu")
    model = materialize(run.module.language_model, device=device, seed=1)
    optimizer = config.optimizer.build()(model)
    batch, loss = run.context.plan.batch, CrossEntropy()
    generator = torch.Generator().manual_seed(0)
    shape = (batch.micro_batch_sequences, batch.context_tokens + 1)
    tokens: Tensor = torch.randint(model.vocab_size, shape, generator=generator).to(device)

    def step() -> None:
        total = model(tokens[:, :-1], tokens[:, 1:], loss)
        (total.objective / total.num_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run, step


def turn(step: Callable[[], None], num_steps: int, *, clock: bool, deterministic: bool) -> float:
    """Return seconds a step."""
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    started = time.perf_counter() if clock else time.process_time()
    for _ in range(num_steps):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return ((time.perf_counter() if clock else time.process_time()) - started) / num_steps


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16, help="turns of each")
    parser.add_argument("--turn-steps", type=int, default=4, help="optimizer steps of one turn")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--clock", action="store_true", help="clock time in place of this process's CPU time")
    arguments, words = parser.parse_known_args()
    os.environ.update(ENVIRONMENT)  # cuBLAS reads it once, so that both have the same workspace
    torch.set_num_threads(arguments.threads)
    be_deterministic()
    with tempfile.TemporaryDirectory() as temporary:
        _, step = build(words, Path(temporary))
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(arguments.rounds + WARM_UP_ROUNDS):
            for deterministic, turns in seconds.items():
                turns.append(turn(step, arguments.turn_steps, clock=arguments.clock, deterministic=deterministic))
    free, ordered = (turns[WARM_UP_ROUNDS:] for turns in seconds.values())
    quartiles = statistics.quantiles([mine / other for mine, other in zip(ordered, free, strict=True)], n=4)
    result = {
        "torch": torch.__version__,
        "milliseconds": round(1e3 * statistics.median(free), 2),
        "deterministic_milliseconds": round(1e3 * statistics.median(ordered), 2),
        "ratio": round(quartiles[1], 4),
        "ratio_lower_quartile": round(quartiles[0], 4),
        "ratio_upper_quartile": round(quartiles[2], 4),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
