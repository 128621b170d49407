"""Where the runs of a sweep train: on this machine, each on its own devices, or in SLURM's queue through submitit.

A SLURM job is one node with its ranks below one task, and outlives the sweep's process: its id is in a file, by which a
new process waits for it instead of submitting the run again. Before its time limit a job's run saves and ends; the same
command continues it in a new job.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.quantities import format_count
from lmtrain.child_process import python_environment
from lmtrain.errors import EXIT_TERMINATED, LMTRAIN_ERRORS, ConfigurationError, EnvironmentProblem
from lmtrain.launch.local import worker_command
from lmtrain.launch.rank_ends import plain_exit_code
from lmtrain.missing_package import require_package
from lmtrain.run.execution.start import start
from lmtrain.run.stored_runs.job import Job, job_of_rank
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.tracking.redaction import redact_text
from lmtrain.tracking.run_folder import ask_to_stop, is_asked_to_stop

ENTRY_POINT: Final = "lmtrain.run.sweeps.runners:run_trial"
LOGS: Final = "%j"
QUERY_SECONDS: Final = 15.0  # between two queries of SLURM
PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
UNKNOWN_JOB: Final = "Invalid job id"  # squeue's message for a job that ended a while ago
SIGNAL: Final = {"SUBMITIT_PREEMPT_SIGNAL": "USR1"}  # before the time limit: the run saves


def run_trial(job_path: Path) -> int:
    """Train a saved job on its own ranks, a separate process group; a refusal's message goes to a file next to it."""
    refusal = refusal_path(job_path)
    refusal.unlink(missing_ok=True)
    try:
        return start(job_of_rank(job_path).begun_now(), outer=None, isolated=True)
    except LMTRAIN_ERRORS as error:
        message = redact_text(str(error))
        refusal.write_text(message)
        print(message, file=sys.stderr)
        return error.exit_code


def refusal_path(job_path: Path) -> Path:
    """Return the file for the message of a refused job."""
    return job_path.with_suffix(".refusal.txt")


@dataclass(frozen=True)
class LocalTrial:
    """A run's process on this machine."""

    process: "subprocess.Popen[bytes]"

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
    """This machine: `parallel` slots of `num_devices` devices each; with `num_gpus` 0 on its processors.

    A run's output goes to a file next to its job, or with `shows_output` to the terminal.
    """

    parallel: int
    num_devices: int
    num_gpus: int
    shows_output: bool = False

    def __post_init__(self) -> None:
        needed = self.parallel * self.num_devices
        if self.parallel > 1 and 0 < self.num_gpus < needed:
            fitting = max(1, self.num_gpus // self.num_devices)
            raise ConfigurationError(
                f"sweep.parallel={self.parallel} runs on {format_count(self.num_devices, 'device')} each need "
                f"{needed}, and this machine has {self.num_gpus}; set sweep.parallel={fitting}."
            )

    def start(self, job: Job, job_path: Path, *, slot: int) -> LocalTrial:
        """Start a saved job."""
        console = nullcontext() if self.shows_output else job_path.with_suffix(".log").open("ab")
        with console as log:
            process = subprocess.Popen(
                worker_command(ENTRY_POINT, job_path),
                env={**python_environment(), **job.handed_over(), **self.environment(slot)},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return LocalTrial(process)

    def environment(self, slot: int) -> dict[str, str]:
        """Return the variables of a slot: its GPUs, or its share of the processors' threads."""
        if self.parallel == 1:
            return {}
        if self.num_gpus == 0:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            return {"OMP_NUM_THREADS": str(max(1, cores // (self.parallel * self.num_devices)))}
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = seen.split(",") if seen else [str(index) for index in range(self.num_gpus)]
        first = slot * self.num_devices
        return {"CUDA_VISIBLE_DEVICES": ",".join(names[first : first + self.num_devices])}


@dataclass
class SlurmTrial:
    """A submitted run and its folder; `state` returns a job's state in SLURM's queue, empty once it is gone."""

    job: Any
    folder: Path
    state: Callable[[str], str]
    _queried_at: float = field(default_factory=time.monotonic)
    _is_stopping: bool = False
    _is_cancelled: bool = False
    _is_gone: bool = False

    def exit_code(self) -> int | None:
        """Return its exit code, None while it waits or runs; 1 if SLURM ended it without a result."""
        if self.job.paths.result_pickle.exists():
            return 1 if self.job.exception() is not None else int(self.job.result())
        if self._is_cancelled:
            return EXIT_TERMINATED
        if self._is_stopping and self.folder.exists() and not is_asked_to_stop(self.folder):
            ask_to_stop(self.folder)  # a run that begins forgets an earlier request
        if time.monotonic() - self._queried_at < QUERY_SECONDS:
            return None
        self._queried_at = time.monotonic()
        was_gone, self._is_gone = self._is_gone, not self.state(self.job.job_id)
        return 1 if was_gone and self._is_gone else None  # its result may come a moment after its end in the queue

    def stop(self, number: int) -> None:
        """Cancel it while it waits; else it ends after its step."""
        del number
        self._is_stopping = True
        if self.state(self.job.job_id) == PENDING:
            self.job.cancel()
            self._is_cancelled = True


@dataclass(frozen=True, kw_only=True)
class SlurmRunner:
    """SLURM's queue; `parameters` are submitit's, `num_devices` those of a run. `cluster` "local" is for tests."""

    folder: Path
    parameters: Mapping[str, Any]
    num_devices: int
    uses_gpus: bool
    cluster: str = "slurm"

    def start(self, job: Job, job_path: Path, *, slot: int) -> SlurmTrial:
        """Submit a saved job, or find the one submitted before."""
        del slot
        known = read_json(_note(job_path)).get("job_id")
        submitted = self._find(str(known)) if known else None
        return SlurmTrial(submitted or self._submit(job, job_path), job.folder, self.state)

    def _submit(self, job: Job, job_path: Path) -> Any:
        """Submit a saved job, and note its id."""
        executor = _submitit().AutoExecutor(folder=self.folder / LOGS, cluster=self.cluster)
        gpus = {"gpus_per_node": self.num_devices} if self.uses_gpus else {}
        executor.update_parameters(name=job_path.stem, tasks_per_node=1, nodes=1, **{**gpus, **self.parameters})
        try:
            submitted = executor.submit(run_trial, job_path)
        except Exception as problem:
            raise EnvironmentProblem(f"{job.name} was not submitted: {_last_line(str(problem))}") from problem
        write_json(_note(job_path), {"job_id": submitted.job_id})
        return submitted

    def _find(self, job_id: str) -> Any:
        """Return an unfinished job, None if it has ended: its run then continues in a new one."""
        submitit = _submitit()
        kind = submitit.SlurmJob if self.cluster == "slurm" else submitit.LocalJob
        found = kind(folder=self.folder / LOGS, job_id=job_id)
        has_ended = found.paths.result_pickle.exists() or not self.state(job_id)
        return None if has_ended else found

    def state(self, job_id: str) -> str:
        """Return a job's state in SLURM's queue, empty once it is gone; squeue, as not every cluster has accounting."""
        if self.cluster != "slurm":
            return RUNNING  # only a result ends it
        words = ["squeue", "--noheader", "--format=%T", "--jobs", job_id]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        does_answer = ended.returncode == 0 or UNKNOWN_JOB in ended.stderr
        return ended.stdout.strip() if does_answer else RUNNING  # a controller that is down has ended no job


RunningTrial = LocalTrial | SlurmTrial
Runner = LocalRunner | SlurmRunner


def require_slurm() -> None:
    """Refuse a sweep in a queue that does not answer, before any work."""
    _submitit()
    try:
        ended = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True, check=False)
        problem = _last_line(ended.stderr) if ended.returncode else None
    except FileNotFoundError:
        problem = "there is no sinfo"
    if problem:
        raise EnvironmentProblem(
            f"sweep.launcher=slurm: SLURM does not answer on this machine ({problem}); start the sweep on a node of a "
            "cluster, or leave sweep.launcher out."
        )


def _note(job_path: Path) -> Path:
    return job_path.with_suffix(".slurm.json")


def _last_line(words: str) -> str:
    return (words.strip().splitlines() or ["no reason given"])[-1]


def _submitit() -> Any:
    os.environ.update(SIGNAL)  # read at its import, here and in the job
    require_package("sweep.launcher=slurm", "submitit", extra="sweep")
    import submitit

    return submitit
