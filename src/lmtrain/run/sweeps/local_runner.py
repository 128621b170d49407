"""Start the runs of a sweep on this machine, side by side, each on devices of its own."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from lmtrain.accounting.quantities import format_count
from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import ConfigurationError
from lmtrain.launch.job import plain_exit_code
from lmtrain.run.stored_runs.job import Job

MODULE: Final = "lmtrain.run.sweeps.trial_process"


class RunningTrial(Protocol):
    """A started run."""

    @property
    def console(self) -> Path:
        """Return the file of its output."""
        ...

    def exit_code(self) -> int | None:
        """Return its exit code, None while it runs."""
        ...

    def stop(self, number: int) -> None:
        """Let it end after its step, with a checkpoint."""
        ...


class Runner(Protocol):
    """Where the runs of a sweep are started."""

    def start(self, job: Job, job_path: Path, *, slot: int) -> RunningTrial:
        """Start a saved job in one of the slots, from 0."""
        ...


@dataclass(frozen=True)
class LocalTrial:
    """A run's process on this machine."""

    process: "subprocess.Popen[bytes]"
    console: Path

    def exit_code(self) -> int | None:
        """Return its exit code, None while it runs."""
        code = self.process.poll()
        return None if code is None else plain_exit_code(code)

    def stop(self, number: int) -> None:
        """Pass a signal on."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.Signals(number))


@dataclass(frozen=True, kw_only=True)
class LocalRunner:
    """This machine: `parallel` slots of `num_devices` devices each; `num_gpus` 0 trains on its processors."""

    parallel: int
    num_devices: int
    num_gpus: int

    def __post_init__(self) -> None:
        needed = self.parallel * self.num_devices
        if self.parallel > 1 and 0 < self.num_gpus < needed:
            fitting = max(1, self.num_gpus // self.num_devices)
            raise ConfigurationError(
                f"sweep.parallel={self.parallel} runs on {format_count(self.num_devices, 'device')} each need "
                f"{needed}, and this machine has {self.num_gpus}; nearest valid: sweep.parallel={fitting}."
            )

    def start(self, job: Job, job_path: Path, *, slot: int) -> LocalTrial:
        """Start a saved job; its output goes into a file beside it."""
        command = python_command("-m", MODULE, "--parent", str(os.getpid()), str(job_path))
        environment = {**python_environment(), **job.handed_over(), **self.environment(slot)}
        console = job_path.with_suffix(".log")
        with console.open("ab") as log:
            return LocalTrial(_start(command, environment, log), console)

    def environment(self, slot: int) -> dict[str, str]:
        """Return the variables for a slot: its GPUs, or its share of the processors' threads."""
        if self.parallel == 1:
            return {}
        if self.num_gpus == 0:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            return {"OMP_NUM_THREADS": str(max(1, cores // (self.parallel * self.num_devices)))}
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = seen.split(",") if seen else [str(index) for index in range(self.num_gpus)]
        first = slot * self.num_devices
        return {"CUDA_VISIBLE_DEVICES": ",".join(names[first : first + self.num_devices])}


def _start(command: list[str], environment: Mapping[str, str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        env=dict(environment),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
