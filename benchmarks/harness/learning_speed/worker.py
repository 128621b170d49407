"""One loop in a process of its own.

`python -m benchmarks.harness.learning_speed.worker LOOP TASK RESULT` trains to the end and writes RESULT; with ORDERS,
ANSWERS and STARTED in place of RESULT (two file descriptors, a unix time) it takes timed turns.
"""

import importlib
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch

from benchmarks.harness.learning_speed.referees import Followed, Timed
from benchmarks.harness.learning_speed.task import LearningTask, load_task
from benchmarks.harness.train_step.turns import Finished


def main() -> None:
    """Run the loop."""
    name, path, *others = sys.argv[1:]
    task = load_task(Path(path))
    warnings.simplefilter("ignore")
    torch.manual_seed(task.seed)
    torch.set_num_threads(task.threads)
    if len(others) == 1:
        follow(name, task, Path(others[0]))
    else:
        take_turns(name, task, *others)
    sys.stdout.flush()
    os._exit(0)  # what a loop leaves behind in threads must not keep the process


def follow(name: str, task: LearningTask, result: Path) -> None:
    """Train to the end and write the result."""
    referee, loop = Followed(task), importlib.import_module(f"benchmarks.peers.learning_speed.{name}")
    referee.say(loop=name, given=loop.GIVEN, seed=task.seed, lr_factor=task.lr_factor, num_steps=task.max_steps)
    loop.run(task, referee)
    referee.save(result)


def take_turns(name: str, task: LearningTask, orders: str, answers: str, started_at: str) -> None:
    """Take turns until there are no more; a failure is told."""
    with os.fdopen(int(orders)) as reading, os.fdopen(int(answers), "w") as writing:
        turns = Timed(task, orders=reading, answers=writing, started_at=float(started_at))
        try:
            importlib.import_module(f"benchmarks.peers.learning_speed.{name}").run(task, turns)
        except Finished:
            return
        except Exception as problem:  # noqa: BLE001  # told to the driver, which ends the measurement
            turns.say(skipped=f"{type(problem).__name__}: {problem}")
            traceback.print_exc()


if __name__ == "__main__":
    main()
