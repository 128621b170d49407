"""One loop in a process of its own: `python -m benchmarks.harness.train_step.worker LOOP TASK ORDERS ANSWERS STARTED`.

LOOP is a name in loops.py, or a module with `run(task, turns)`; ORDERS and ANSWERS are file descriptors.
"""

import importlib
import os
import sys
import traceback
import warnings
from pathlib import Path

from benchmarks.harness.train_step.loops import LOOPS, Loop
from benchmarks.harness.train_step.task import Task, Unavailable, load_task
from benchmarks.harness.train_step.turns import Finished, Turns


def main() -> None:
    """Run the loop until it has taken all its turns."""
    name, path, orders, answers, started_at = sys.argv[1:]
    task = load_task(Path(path))
    with os.fdopen(int(orders)) as reading, os.fdopen(int(answers), "w") as writing:
        turns = Turns(task, orders=reading, answers=writing, started_at=float(started_at))
        code = run(name, task, turns)
    sys.stdout.flush()
    os._exit(code)  # what a loop leaves behind in threads is not measured, and must not keep the process


def run(name: str, task: Task, turns: Turns) -> int:
    """Run one loop; a failure is told to the driver and makes this loop a skipped row."""
    import torch

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(task.threads)
    try:
        told = LOOPS.get(name, Loop(title=name, module=name))
        module = importlib.import_module(name if "." in name else f"benchmarks.peers.train_step.{told.module}")
        turns.say(given=module.GIVEN + told.given_suffix)
        module.run(task, turns, **told.settings)
        turns.say(skipped="its loop ended before all turns were taken")
    except Finished:
        return 0
    except Unavailable as reason:
        turns.say(skipped=str(reason))
    except ImportError as problem:
        turns.say(skipped=f"not importable: {problem}")
        traceback.print_exc()
    except Exception as problem:  # noqa: BLE001  # one peer's failure is one row, not the end of the measurement
        turns.say(skipped=f"{type(problem).__name__}: {str(problem).splitlines()[0][:160] if str(problem) else ''}")
        traceback.print_exc()
    return 1


if __name__ == "__main__":
    main()
