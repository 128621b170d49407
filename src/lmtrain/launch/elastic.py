"""The ranks of one job on one machine, watched by torch.distributed's elastic agent.

Several machines are started by torchrun, SLURM or Kubernetes (`lmtrain launch`): the rendezvous here is of one agent.
Four of its habits are changed here (torch 2.11 to 2.13). It opens no port to the network. A signal reaches the ranks
only, not the data loader workers in their process groups. When a rank fails, the others have half a second, not thirty.
And the exit code is the first failed rank's, not 1. A failed job is not started again: a scheduler does so, by the exit
code.
"""

import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from lmtrain.child_process import python_command
from lmtrain.errors import ConnectionLost
from lmtrain.launch.agent_job import LaunchJob, StopRequest
from lmtrain.launch.detect import STORE_VARIABLE
from lmtrain.launch.exit_codes import REFUSALS, RankEnd, describe, plain_exit_code, root_cause
from lmtrain.launch.local_rendezvous import LocalRendezvous
from lmtrain.launch.stopped_ranks import StoppedRanks
from lmtrain.storage import foreign_json
from lmtrain.tracking.hangs.heartbeat import beat_path, read_beat

MONITOR_SECONDS = 0.1
FAILURE_GRACE_SECONDS = 0.5
TAIL_LINES = 20


def run_job(job: LaunchJob, stop: StopRequest) -> int:
    """Start the ranks, wait for all of them, and return the job's exit code."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its news is reported once, by us
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP,SIGQUIT"
    for rank in range(job.num_ranks):
        job.log_path(rank).unlink(missing_ok=True)
        beat_path(job.run_folder, rank).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="lmtrain-") as stores:  # no other user can look into it
        agent = _Agent(job, stop, Path(stores))
        result = cast("RunResult", agent.run())
    if not result.is_failed():
        return 0
    first = root_cause(agent.first_failures)
    if not _told_by_rank_0(first, job) and (first.rank != 0 or (first.exit_code < 0 and stop.number is None)):
        tail = "" if first.rank == 0 or first.exit_code in REFUSALS else _tail(job.log_path(first.rank))
        lines = [describe(first, job.num_ranks, tail, job.log_path(first.rank)), _last_activity(first, job)]
        sys.stderr.write("".join(f"{line}\n" for line in lines if line))
    return plain_exit_code(first.exit_code)


def _last_activity(end: RankEnd, job: LaunchJob) -> str | None:
    """Name the activity of a rank killed in this start; its heartbeat has outlived it."""
    beat = read_beat(job.run_folder, end.rank)
    if end.exit_code >= 0 or beat is None:
        return None
    return f"its last activity: {beat.activity}" + (f" of step {beat.step}." if beat.step else ".")


def _told_by_rank_0(end: RankEnd, job: LaunchJob) -> bool:
    """Return whether rank 0, whose words are on the terminal, refused with the same words before it was stopped."""
    told = _with_reason(0, end.exit_code, job.error_path(0)).message
    return end.exit_code in REFUSALS and told is not None and told == end.message


# torch's timing decorator hides the signatures of the overridden methods.
# pyright: reportIncompatibleVariableOverride=false, reportCallIssue=false
class _Agent(LocalElasticAgent):
    def __init__(self, job: LaunchJob, stop: StopRequest, stores: Path) -> None:
        grace: Any = FAILURE_GRACE_SECONDS  # declared as a whole number, and taken as seconds
        super().__init__(_worker_spec(job), _Logs(job, stores), shutdown_timeout=grace)
        self._job = job
        self._stop = stop
        self._ends: dict[int, RankEnd] = {}
        self._stopped = StoppedRanks(job.num_ranks)
        self.first_failures: list[RankEnd] = []

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        self._ends = {}
        processes = cast("dict[int, int]", super()._start_workers(worker_group))
        context = self._pcontext
        assert context is not None
        close = context.close
        context.close = lambda death_sig=None, timeout=FAILURE_GRACE_SECONDS: close(death_sig, timeout)
        self._stop.processes[:] = processes.values()
        return processes

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._note_ends()
        running = len(self._ends) < self._job.num_ranks
        failures = [end for end in self._ends.values() if end.exit_code != 0]
        if running and (self._stop.number is not None or not failures):
            self._kill_after_grace()
            self._tell_of_stopped_ranks()
            return RunResult(state=WorkerState.HEALTHY)
        self.first_failures = failures
        self._stop.processes.clear()
        return super()._monitor_workers(worker_group)  # stops the other ranks and reaps all

    def _kill_after_grace(self) -> None:
        if self._stop.number is not None and time.monotonic() - self._stop.at > self._job.grace_seconds:
            self._stop.pass_on(signal.SIGKILL)

    def _tell_of_stopped_ranks(self) -> None:
        context = self._pcontext
        assert context is not None
        running = {rank: process for rank, process in context.pids().items() if rank not in self._ends}
        for line in self._stopped.news(running, now=time.monotonic()):
            sys.stderr.write(line + "\n")

    def _note_ends(self) -> None:
        context = self._pcontext
        assert context is not None
        for rank, process in context.pids().items():
            if rank not in self._ends:
                exit_code = _look_at(process)
                if exit_code is not None:
                    self._ends[rank] = _with_reason(rank, exit_code, self._job.error_path(rank))


class _Logs(LogsSpecs):
    """Leave the ranks' output to the ranks: rank 0 keeps the terminal; name their error files and store."""

    def __init__(self, job: LaunchJob, stores: Path) -> None:
        super().__init__()
        self._job = job
        self._stores = stores

    @property
    def root_log_dir(self) -> str:
        return str(self._job.log_folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        console = dict.fromkeys(envs, "")
        errors = {rank: str(self._job.error_path(rank)) for rank in envs}
        for rank, path in errors.items():
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = path
            envs[rank][STORE_VARIABLE] = str(self._stores / envs[rank]["TORCHELASTIC_RESTART_COUNT"])  # new each time
            Path(path).unlink(missing_ok=True)
        return LogsDest(stdouts=console, stderrs=dict(console), error_files=errors)


def _worker_spec(job: LaunchJob) -> WorkerSpec:
    entry_point, *arguments = python_command(
        "-m", "lmtrain.launch.worker", "--agent", str(os.getpid()), "--log-folder", str(job.log_folder)
    )
    arguments += ["--entry-point", job.entry_point, "--config", str(job.config_path)]
    return WorkerSpec(
        role="rank",
        local_world_size=job.num_ranks,
        rdzv_handler=LocalRendezvous(run_id=f"lmtrain-{os.getpid()}"),
        entrypoint=entry_point,
        args=tuple(argument.replace("$", "$$") for argument in arguments),  # they are a template of ${local_rank}
        max_restarts=0,
        monitor_interval=MONITOR_SECONDS,
    )


def _look_at(process: int) -> int | None:
    """Return a child's return code and leave its reaping to the agent; None while it runs."""
    found = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _with_reason(rank: int, exit_code: int, path: Path) -> RankEnd:
    try:
        reason = foreign_json.read(path)
        return RankEnd(
            rank=rank,
            exit_code=exit_code,
            time=float(reason["time"]),
            message=str(reason["message"]),
            follows=reason.get("kind") == ConnectionLost.__name__,
        )
    except (OSError, ValueError, KeyError):
        return RankEnd(rank=rank, exit_code=exit_code, time=time.monotonic())


def _tail(path: Path) -> str:
    try:
        lines = path.read_bytes()[-65536:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-TAIL_LINES:])
