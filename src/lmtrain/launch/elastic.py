"""The ranks of one job on one machine, watched by torch.distributed's elastic agent.

Several machines are started by torchrun, SLURM or Kubernetes (`lmtrain launch`): the rendezvous here has one agent.
Four habits of torch's agent are changed (torch 2.11 to 2.13). It opens no port to the network. A signal reaches only
the ranks, not the data loader workers in their process groups. When a rank fails, the others have half a second instead
of thirty. And the exit code is the first failed rank's, not 1. A failed job is not restarted: a scheduler does that.
"""

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo
from typing_extensions import override

from lmtrain.child_process import python_command
from lmtrain.errors import ConnectionLost
from lmtrain.launch.detect import STORE_VARIABLE
from lmtrain.launch.job import REFUSALS, LaunchJob, RankEnd, StopRequest, describe, plain_exit_code, root_cause
from lmtrain.storage import foreign_json
from lmtrain.tracking.hangs import beat_path, read_beat

MONITOR_SECONDS = 0.1
FAILURE_GRACE_SECONDS = 0.5
TAIL_LINES = 20
REPORT_STOPPED_AFTER_SECONDS: Final = 10.0


def run_job(job: LaunchJob, stop: StopRequest) -> int:
    """Start the ranks, wait for all of them, and return the job's exit code."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # failures are reported once, below
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP,SIGQUIT"
    for rank in range(job.num_ranks):
        job.log_path(rank).unlink(missing_ok=True)
        beat_path(job.run_folder, rank).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="lmtrain-") as stores:  # readable by this user alone
        agent = _Agent(job, stop, Path(stores))
        result = cast("RunResult", agent.run())
    if not result.is_failed():
        return 0
    first = root_cause(agent.first_failures)
    if not _reported_by_rank_0(first, job) and (first.rank != 0 or (first.exit_code < 0 and stop.number is None)):
        tail = "" if first.rank == 0 or first.exit_code in REFUSALS else _tail(job.log_path(first.rank))
        lines = [describe(first, job.num_ranks, tail, job.log_path(first.rank)), _last_activity(first, job)]
        sys.stderr.write("".join(f"{line}\n" for line in lines if line))
    return plain_exit_code(first.exit_code)


def _last_activity(end: RankEnd, job: LaunchJob) -> str | None:
    """Name the last activity of a killed rank, from its heartbeat."""
    beat = read_beat(job.run_folder, end.rank)
    if end.exit_code >= 0 or beat is None:
        return None
    return f"its last activity: {beat.activity}" + (f" of step {beat.step}." if beat.step else ".")


def _reported_by_rank_0(end: RankEnd, job: LaunchJob) -> bool:
    """Return whether rank 0, whose output is on the terminal, refused with the same message."""
    message = _with_reason(0, end.exit_code, job.error_path(0)).message
    return end.exit_code in REFUSALS and message is not None and message == end.message


# torch's timing decorator hides the signatures of the overridden methods.
# pyright: reportIncompatibleVariableOverride=false, reportCallIssue=false
class _Agent(LocalElasticAgent):
    def __init__(self, job: LaunchJob, stop: StopRequest, stores: Path) -> None:
        grace: Any = FAILURE_GRACE_SECONDS  # declared as an integer, used as seconds
        super().__init__(_worker_spec(job), _Logs(job, stores), shutdown_timeout=grace)
        self._job = job
        self._stop = stop
        self._ends: dict[int, RankEnd] = {}
        self._stopped = StoppedRanks(job.num_ranks, grace_seconds=job.grace_seconds)
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
            self._report_stopped_ranks()
            return RunResult(state=WorkerState.HEALTHY)
        self.first_failures = failures
        self._stop.processes.clear()
        return super()._monitor_workers(worker_group)  # stops the other ranks and reaps all

    def _kill_after_grace(self) -> None:
        if self._stop.number is not None and time.monotonic() - self._stop.at > self._job.grace_seconds:
            self._stop.pass_on(signal.SIGKILL)

    def _report_stopped_ranks(self) -> None:
        context = self._pcontext
        assert context is not None
        running = {rank: process for rank, process in context.pids().items() if rank not in self._ends}
        is_ending = self._stop.number is not None
        for line in self._stopped.notices(running, now=time.monotonic(), is_ending=is_ending):
            sys.stderr.write(line + "\n")

    def _note_ends(self) -> None:
        context = self._pcontext
        assert context is not None
        for rank, process in context.pids().items():
            if rank not in self._ends:
                exit_code = _exit_code_of(process)
                if exit_code is not None:
                    self._ends[rank] = _with_reason(rank, exit_code, self._job.error_path(rank))


class _Logs(LogsSpecs):
    """Leave the ranks' output to the ranks (rank 0 keeps the terminal); name their error files and store."""

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


def _exit_code_of(process: int) -> int | None:
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


class StoppedRanks:
    """Report ranks stopped by SIGSTOP, a debugger or a frozen terminal: the others wait for them silently."""

    def __init__(self, num_ranks: int, *, grace_seconds: float) -> None:
        """`grace_seconds` is how long ranks may take to end after a signal."""
        self._num_ranks = num_ranks
        self._grace_seconds = grace_seconds
        self._since: dict[int, float] = {}
        self._reported: set[int] = set()
        self._reported_end = False

    def notices(self, processes: Mapping[int, int], *, now: float, is_ending: bool = False) -> list[str]:
        """Return the notices at `now` (monotonic seconds) on the child processes by rank.

        A lasting stop is reported once, and so is its end; while the job `is_ending`, the wait for it at once.
        """
        lines: list[str] = []
        for rank, process in processes.items():
            name = f"rank {rank} of {self._num_ranks}"
            if not is_stopped(process):
                self._since.pop(rank, None)
                if rank in self._reported:
                    self._reported.remove(rank)
                    lines.append(f"{name} continues.")
                continue
            seconds = now - self._since.setdefault(rank, now)
            if is_ending and not self._reported_end:
                self._reported_end = True
                lines.append(
                    f"{name} (process {process}) is stopped, so the job cannot end cleanly: waiting up to "
                    f"{self._grace_seconds:.0f} s, then all ranks are killed; `kill -CONT {process}` resumes it."
                )
            elif seconds >= REPORT_STOPPED_AFTER_SECONDS and rank not in self._reported and not is_ending:
                self._reported.add(rank)
                lines.append(
                    f"{name} (process {process}) has been stopped for {seconds:.0f} s, and the others wait for it; "
                    f"`kill -CONT {process}` resumes it."
                )
        return lines


def is_stopped(process: int) -> bool:
    """Return whether a child is stopped by a signal; the parent's own wait still sees the stop."""
    try:
        return os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has just ended
        return False


class LocalRendezvous(RendezvousHandler):
    """The rendezvous of one agent on one machine, without a listening port: its store is in memory.

    torch's own (c10d) opens two stores on every interface of the machine, without a key, and unpickles the bytes of
    anybody who connects (2.13). The ranks meet in a file in a folder of the agent's user, see process_group.join.
    """

    def __init__(self, run_id: str) -> None:
        """`run_id` is the ranks' TORCHELASTIC_RUN_ID."""
        self._run_id = run_id
        self._is_closed = False

    @override
    def get_backend(self) -> str:
        """Return the name for torch's records."""
        return "local"

    @override
    def next_rendezvous(self) -> RendezvousInfo:
        """Return a new store of one agent; no port is open at MASTER_PORT."""
        nowhere = RendezvousStoreInfo(master_addr="localhost", master_port=0)
        return RendezvousInfo(HashStore(), rank=0, world_size=1, bootstrap_store_info=nowhere)

    @override
    def is_closed(self) -> bool:
        """Return whether the job has ended."""
        return self._is_closed

    @override
    def set_closed(self) -> None:
        """Note the job's end."""
        self._is_closed = True

    @override
    def num_nodes_waiting(self) -> int:
        """Return 0: there is no other node."""
        return 0

    @override
    def get_run_id(self) -> str:
        """Return the ranks' TORCHELASTIC_RUN_ID."""
        return self._run_id

    @override
    def shutdown(self) -> bool:
        """Return at once: nothing was opened."""
        return True
