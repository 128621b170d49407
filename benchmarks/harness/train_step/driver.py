"""Start the loops one after another, let them take turns, and collect what they say."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.harness.train_step.task import LOG_EVERY_STEPS, Task

ROOT = Path(__file__).parents[3]
WORKER = "benchmarks.harness.train_step.worker"
COUNTED_STEPS = 2 * LOG_EVERY_STEPS  # counting host syncs slows a step down several times over


@dataclass
class Contestant:
    """One loop's process: orders go in, answers come out, its own console goes to a file."""

    name: str
    process: "subprocess.Popen[bytes]"
    orders: IO[str]
    answers: IO[str]
    console: Path
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    starts: list[list[dict[str, float]]] = field(default_factory=lambda: [[]])  # the turns of each start

    @property
    def turns(self) -> list[dict[str, float]]:
        """Return the turns of all starts."""
        return [turn for turns in self.starts for turn in turns]

    def join(self, again: "Contestant") -> None:
        """Add what the same loop did when it was started again; facts are the first start's, a failure is any's."""
        self.starts += again.starts
        self.facts = {**again.facts, **self.facts}

    def hear(self) -> dict[str, Any]:
        """Wait for the next answer; a process that died without one is skipped."""
        line = self.answers.readline()
        if not line:
            return {"skipped": f"its process died; see {self.console}"}
        return json.loads(line)

    def hear_until(self, key: str) -> None:
        """Collect answers until one has a key, or the loop drops out."""
        while True:
            answer = self.hear()
            if "wall_seconds" in answer:
                self.starts[-1].append(answer)
            else:
                self.facts.update(answer)
            if key in answer or "skipped" in answer:
                return

    def order(self, **order: Any) -> None:
        """Tell the loop what to do next; what a process that died does not read, `hear` finds out."""
        with suppress(BrokenPipeError):
            os.write(self.orders.fileno(), (json.dumps(order) + "\n").encode())

    @property
    def is_running(self) -> bool:
        """Tell whether it still takes part."""
        return "skipped" not in self.facts


def start(name: str, path: Path, *, worker: str, console: Path, environment: Mapping[str, str]) -> Contestant:
    """Start one loop's process in the folder of its console: the module `worker`, which reads the task at `path`."""
    order_out, order_in = os.pipe()
    answer_out, answer_in = os.pipe()
    words = [name, str(path), str(order_out), str(answer_in), str(time.monotonic())]
    with console.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", worker, *words],
            pass_fds=(order_out, answer_in),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=console.parent,
        )
    os.close(order_out)
    os.close(answer_in)
    return Contestant(name, process, os.fdopen(order_in, "w"), os.fdopen(answer_out), console)


def environment_of(task: Task) -> dict[str, str]:
    """Return the environment of a loop's process."""
    known = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(task.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(known),
        "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD": "1",  # as our own runs have it: a warm start stays warm
    }


def in_turn(contestants: Sequence[Contestant], number: int) -> list[Contestant]:
    """Return who comes after whom in a round: each begins with another one."""
    first = number % max(1, len(contestants))
    return [*contestants[first:], *contestants[:first]]


def measure(
    names: Sequence[str], task: Task, *, rounds: int, tell: Callable[[str], None], count_syncs: bool = True
) -> list[Contestant]:
    """Warm every loop up, then let them take turns `rounds` times, each round beginning with another one."""
    contestants: list[Contestant] = []
    try:
        _take_turns(names, task, contestants, rounds=rounds, tell=tell)
        for contestant in contestants:
            _finish(contestant, count_syncs=count_syncs)
    finally:  # also of a measurement that was given up: no process goes on beside the next
        for contestant in contestants:
            contestant.process.kill()
            contestant.process.wait()
    return contestants


def _take_turns(
    names: Sequence[str], task: Task, contestants: list[Contestant], *, rounds: int, tell: Callable[[str], None]
) -> None:
    path = Path(task.scratch) / "task.json"
    task.save(path)
    for name in names:  # one at a time, so that first steps do not disturb one another
        console = Path(task.scratch) / f"{name}.log"
        contestant = start(name, path, worker=WORKER, console=console, environment=environment_of(task))
        contestants.append(contestant)
        contestant.hear_until("ready")
        tell(
            f"{name}: "
            + contestant.facts.get("skipped", f"ready {contestant.facts.get('first_step_seconds', 0):.1f} s")
        )
    running = [contestant for contestant in contestants if contestant.is_running]
    for number in range(rounds):
        for contestant in in_turn(running, number):
            take_turn(contestant, task.turn_steps)
        tell(f"round {number + 1} of {rounds}")


def take_turn(contestant: Contestant, num_steps: int) -> None:
    """Have a loop train so many steps, unless it has dropped out."""
    if not contestant.is_running:
        return
    contestant.order(steps=num_steps)
    contestant.hear_until("ready")


def _finish(contestant: Contestant, *, count_syncs: bool) -> None:
    """Ask for its peak memory, then count its host syncs, which takes memory, and let it go."""
    counting: list[tuple[dict[str, Any], str]] = [({"count": COUNTED_STEPS}, "ready")] if count_syncs else []
    for order, answer in (({"memory": True}, "ready"), *counting, ({"end": True}, "ended")):
        if contestant.is_running:
            contestant.order(**order)
            contestant.hear_until(answer)
    contestant.orders.close()
    contestant.answers.close()
    try:
        contestant.process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        contestant.process.kill()
        contestant.process.wait()
