"""Measure the time of a step of every loop: they take turns, so that what else the machine does meets all alike."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness.learning_speed.task import LearningTask
from benchmarks.harness.train_step.driver import Contestant, environment_of, in_turn, start, take_turn

WORKER = "benchmarks.harness.learning_speed.worker"


def environment(task: LearningTask) -> dict[str, str]:
    """Return the environment of a loop's process.

    Threads that wait do not spin for long, as `train.py` sets it: on a busy machine they would stop one another.
    """
    return {**environment_of(task), "GOMP_SPINCOUNT": "1000"}


def measure(
    names: Sequence[str], task: LearningTask, *, rounds: int, tell: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Return seconds of each turn's steps, and of the way to the first step, of every loop."""
    timed, scratch = replace(task, is_timed=True, max_steps=10**6), Path(task.scratch)
    contestants: list[Contestant] = []
    for name in names:  # one at a time, so that first steps do not disturb one another
        path, console = scratch / f"timed_{name}.json", scratch / f"timed_{name}.log"
        timed.save(path)
        contestant = start(name, path, worker=WORKER, console=console, environment=environment(timed))
        contestant.hear_until("ready")
        _require(contestant)
        contestants.append(contestant)
        tell(f"{name}: first step after {contestant.facts['first_step_seconds']:.1f} s")
    for number in range(rounds):
        for contestant in in_turn(contestants, number):
            take_turn(contestant, timed.turn_steps)
            _require(contestant)
        told = (f"{one.name} {1e3 * one.turns[-1][clock_of(task.threads)]:.0f} ms" for one in contestants)
        tell(f"round {number + 1}: {', '.join(told)}")
    for contestant in contestants:
        contestant.order(end=True)
        contestant.hear_until("ended")
        contestant.orders.close()
        contestant.process.wait(timeout=60)
    return {
        contestant.name: {
            "first_step_seconds": contestant.facts["first_step_seconds"],
            "wall_seconds": [turn["wall_seconds"] for turn in contestant.turns],
            "cpu_seconds": [turn["cpu_seconds"] for turn in contestant.turns],
        }
        for contestant in contestants
    }


def _require(contestant: Contestant) -> None:
    if not contestant.is_running:
        sys.exit(f"{contestant.name} dropped out: {contestant.facts['skipped']}; see {contestant.console}")


def ratios(seconds: Sequence[float], base: Sequence[float]) -> list[float]:
    """Return how much longer each turn took than the base's turn of the same round, ascending."""
    return sorted(mine / other for mine, other in zip(seconds, base, strict=True))


def clock_of(threads: int) -> str:
    """Return which clock times a turn: CPU seconds of one thread, which other work hardly changes, else the wall's."""
    return "cpu_seconds" if threads == 1 else "wall_seconds"


def milliseconds_per_step(
    found: dict[str, dict[str, Any]], *, clock: str, base: str, known: Mapping[str, float]
) -> dict[str, float]:
    """Return each loop's time of a step on an idle machine.

    What is known from an idle machine is taken as it is; without the base's, the least of its turns stands for it. The
    others' follow by the median of their ratios to the base, turn by turn.
    """
    first = found[base][clock]
    base_ms = known[base] if base in known else 1e3 * min(first)
    follow = {name: base_ms * statistics.median(ratios(one[clock], first)) for name, one in found.items()}
    return {**follow, base: base_ms, **known}


def steps_in(seconds: float, ms_per_step: float) -> int:
    """Return how many whole steps fit into a time."""
    return int(1e3 * seconds / ms_per_step)
