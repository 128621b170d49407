"""What an optimizer step costs beside forward and backward, what stacking matrices saves Muon, and sharing them out.

 `python benchmarks/questions/optimizer_step.py --rounds 5`: the options step the default model in turn, interleaved in
one process, so that what else the machine does meets them alike; then two ranks step copies of it with gloo, each
orthogonalising all matrices or its share. CPU time of a process, which waiting for the other rank does not add to.
Without adamw_8bit, which compiles for minutes on a CPU.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed, multiprocessing, nn

from benchmarks.questions.compile import CONTEXT_TOKENS, NUM_SEQUENCES, VOCAB_SIZE, default_model
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.optim.matrices.orthogonalize import POLAR_EXPRESS
from lmtrain.optim.muon import Muon
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.schema.instantiate import instantiate

OPTIONS = ("sgd", "momentum", "adagrad", "rmsprop", "lion", "adafactor", "schedule_free", "adamw", "muon")
PORT = 29613


def build(model: nn.Module, *words: str, **settings: Any) -> torch.optim.Optimizer:
    """Build an optimizer as the command line does."""
    node = compose_config(list(words))["optimizer"]
    return instantiate({**node, **settings}, key="optimizer")(model)


def one_by_one(model: nn.Module) -> torch.optim.Optimizer:
    """Build Muon with a group for each matrix, so that none is stacked with another."""
    [matrices, *others] = build(model).param_groups
    return Muon([*({**matrices, "params": [matrix]} for matrix in matrices["params"]), *others], quintics=POLAR_EXPRESS)


def steps_of(make: Callable[[nn.Module], torch.optim.Optimizer]) -> Callable[[], None]:
    """Return what takes a step on fixed gradients, after a first one."""
    model = default_model()
    optimizer = make(model)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return lambda: optimizer.step() and None


def forward_and_backward() -> Callable[[], None]:
    """Return what a step costs before the optimizer."""
    model, loss = default_model(), CrossEntropy()
    tokens = torch.randint(VOCAB_SIZE, (NUM_SEQUENCES, CONTEXT_TOKENS + 1))

    def run() -> None:
        model.zero_grad()
        total = model(tokens[:, :-1], tokens[:, 1:], loss)
        (total.objective / total.num_tokens).backward()

    run()
    return run


def median_milliseconds(runs: dict[str, Callable[[], None]], *, rounds: int, steps: int) -> dict[str, float]:
    """Interleave rounds of steps and return each run's median CPU milliseconds a step."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.process_time()
            for _ in range(steps):
                run()
            seconds[name].append((time.process_time() - began) / steps)
    return {name: 1000 * statistics.median(taken) for name, taken in seconds.items()}


def show(times: dict[str, float], *, reference: str, names: Iterable[str]) -> None:
    """Print a table of times, each also as a share of a whole step with it."""
    print("| what | CPU ms a step | share of a step |\n|---|---|---|")
    for name in names:
        share = "" if name == reference else f"{times[name] / (times[name] + times[reference]):.0%}"
        print(f"| {name} | {times[name]:.2f} | {share} |")


def rank_main(rank: int, rounds: int, steps: int) -> None:
    """Step copies on one of two ranks, with and without sharing."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    runs = {
        f"2 ranks, {what}": steps_of(lambda model, share=share: build(model, share_work=share))
        for what, share in (("each matrix on both", False), ("each matrix on one", True))
    }
    times = median_milliseconds(runs, rounds=rounds, steps=steps)
    if rank == 0:
        print("\n| Muon | CPU ms a step and rank |\n|---|---|")
        for name, milliseconds in times.items():
            print(f"| {name} | {milliseconds:.2f} |")
    distributed.destroy_process_group()


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    makes: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
        option: lambda model, option=option: build(model, f"optimizer={option}") for option in OPTIONS
    }
    makes["adamw moments=bf16"] = lambda model: build(model, "optimizer=adamw", moments="bf16")
    makes["muon, matrix by matrix"] = one_by_one
    makes["muon row_beta=null"] = lambda model: build(model, row_beta=None)
    runs = {"forward and backward": forward_and_backward()} | {name: steps_of(make) for name, make in makes.items()}
    times = median_milliseconds(runs, rounds=arguments.rounds, steps=arguments.steps)
    show(times, reference="forward and backward", names=runs)
    multiprocessing.spawn(rank_main, args=(arguments.rounds, arguments.steps), nprocs=2)


if __name__ == "__main__":
    main()
