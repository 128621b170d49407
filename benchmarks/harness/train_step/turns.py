"""The loops take turns: each runs a few steps when it is told to, measures them with its own clock, and waits.

A loop lives in a process of its own, so that its CPU seconds, its memory and its first step are its own, and calls
`step()` once after every optimizer step; between turns it stands still inside that call.
"""

import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from benchmarks.harness.train_step.task import Task
from lmtrain.training.step_timer import HostSyncs


class Finished(BaseException):  # not an Exception, so that no loop takes it for a failure of its own
    """All turns are taken."""


class Turns:
    """The loop's side of taking turns; `orders` and `answers` are lines of JSON."""

    def __init__(self, task: Task, *, orders: IO[str], answers: IO[str], started_at: float) -> None:
        self._task = task
        self._orders = orders
        self._answers = answers
        self._started_at = started_at  # on time.monotonic's clock, when the process was asked for
        self._step = 0
        self._helpers: list[int] = []
        self._finish: Callable[[], None] = self._first_step
        self._until = 1  # the step that ends the turn

    def step(self) -> None:
        """Say that an optimizer step is over; waits here until it is this loop's turn.

        Raises:
            Finished: There are no more turns.
        """
        self._step += 1
        if self._step == self._until:
            self._finish()

    def watch(self, process_id: int) -> None:
        """Count the CPU seconds of a process that helps this loop, too."""
        self._helpers.append(process_id)

    def say(self, **facts: Any) -> None:
        """Tell the driver."""
        self._answers.write(json.dumps(facts) + "\n")
        self._answers.flush()

    def _first_step(self) -> None:
        self._wait_for_device()
        self.say(first_step_seconds=time.monotonic() - self._started_at, first_step_cpu_seconds=time.process_time())
        self._until, self._finish = max(2, self._task.warm_up_steps), self._await_order

    def _await_order(self) -> None:
        self._wait_for_device()
        self.say(ready=True)
        order = json.loads(self._orders.readline() or '{"end": true}')
        if "end" in order:
            self.say(ended=True)
            raise Finished
        if "memory" in order:
            self.say(**self._memory())
            self._await_order()
        elif "count" in order:
            self._count(int(order["count"]))
        else:
            self._time(int(order["steps"]))

    def _time(self, num_steps: int) -> None:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._task.device == "cuda" else []
        if events:
            events[0].record()
        helped = self._helper_seconds()
        wall, cpu = time.perf_counter(), time.process_time()

        def finish() -> None:
            now_cpu, facts = time.process_time(), {}
            if events:
                events[1].record()
                torch.cuda.synchronize()
                facts["device_seconds"] = events[0].elapsed_time(events[1]) / 1e3 / num_steps
            facts["wall_seconds"] = (time.perf_counter() - wall) / num_steps
            facts["cpu_seconds"] = (now_cpu - cpu) / num_steps
            facts["helper_cpu_seconds"] = (self._helper_seconds() - helped) / num_steps
            self.say(**facts)
            self._await_order()

        self._until, self._finish = self._step + num_steps, finish

    def _helper_seconds(self) -> float:
        """Add up user and system time, fields 14 and 15 of Linux's /proc/PID/stat."""
        ticks = 0
        for process_id in self._helpers:
            fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _count(self, num_steps: int) -> None:
        syncs = HostSyncs()
        syncs.start()

        def finish() -> None:
            self.say(host_syncs=syncs.stop() / num_steps)
            self._await_order()

        self._until, self._finish = self._step + num_steps, finish

    def _memory(self) -> dict[str, float]:
        if self._task.device == "cuda":
            return {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            }
        return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    def _wait_for_device(self) -> None:
        if self._task.device == "cuda":
            torch.cuda.synchronize()
