"""Start the ranks of one job on this machine and wait for them, from a light parent: one worker process per rank.

torch's own agent (2.13) opens a port to the network, signals whole process groups with the loaders' workers in them,
and answers every failure with exit code 1. The ranks meet in a file of this user instead (process_group.join). A failed
job is not restarted: a scheduler does that.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

from lmtrain.child_process import python_command, python_environment
from lmtrain.launch.detect import STORE_VARIABLE, without_rank_variables
from lmtrain.launch.rank_ends import REFUSALS, RankEnd, describe, plain_exit_code, read_end, root_cause
from lmtrain.tracking.hangs import beat_path, read_beat
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.status import CLEAN_STOPS, Status, read_status, status_name, write_status
from lmtrain.training.stopping import handling

DEFAULT_ENTRY_POINT: Final = "lmtrain.run.execution.start:run_saved"
MONITOR_SECONDS: Final = 0.1
FAILURE_GRACE_SECONDS: Final = 0.5  # of the other ranks, once one has failed
TAIL_LINES: Final = 20


def worker_command(entry_point: str, config_path: Path) -> list[str]:
    """Return the command of a process that runs entry_point(config_path), "module:function", and ends with this one."""
    words = ("--parent", str(os.getpid()), "--entry-point", entry_point, "--config", str(config_path.absolute()))
    return python_command("-m", "lmtrain.launch.worker", *words)


def launch(
    config_path: Path,
    *,
    num_processes: int,
    run_folder: Path,
    entry_point: str = DEFAULT_ENTRY_POINT,
    grace_seconds: float = 120.0,
    more_environment: Mapping[str, str] | None = None,
) -> int:
    """Run entry_point(config_path) on each of num_processes ranks and return the job's exit code.

    The code is the first failed rank's. SIGTERM, SIGINT and SIGUSR1 are passed on to the ranks, with grace_seconds to
    save and leave. Nothing outlives this call, nor this process. `more_environment` is added to the ranks' environment.
    """
    attempts = RunFolder(run_folder).attempts()
    log_folder = attempts[-1] if attempts else run_folder
    ranks = Ranks(num_processes, run_folder=run_folder, log_folder=log_folder, grace_seconds=grace_seconds)
    command = worker_command(entry_point, config_path)
    with handling(ranks.hear), tempfile.TemporaryDirectory(prefix="lmtrain-") as meeting:
        store = str(Path(meeting) / "store")  # readable by this user alone
        try:
            ranks.start(command, {**(more_environment or {}), STORE_VARIABLE: store})
            code = ranks.wait()
        finally:
            ranks.end_others(signal.SIGKILL)
    _record_end(run_folder, code)
    return code


class Ranks:
    """The processes of one job; `stop_number` is the first signal to it, passed on to the ranks alone.

    The data loader workers are in their ranks' process groups, and would die under a rank about to save.
    """

    def __init__(self, num_ranks: int, *, run_folder: Path, log_folder: Path, grace_seconds: float) -> None:
        self.num_ranks, self._run_folder, self._log_folder = num_ranks, run_folder, log_folder
        self._grace_seconds = grace_seconds
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ends: dict[int, RankEnd] = {}
        self.stop_number: int | None = None
        self._stopped_at = 0.0

    def start(self, command: list[str], variables: Mapping[str, str]) -> None:
        """Start the ranks; rank 0 keeps the terminal, the others' output goes to their logs."""
        environment = without_rank_variables(python_environment()) | dict(variables)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // self.num_ranks)))
        for rank in range(self.num_ranks):
            for path in (self._error_file(rank), self._log(rank), beat_path(self._run_folder, rank)):
                path.unlink(missing_ok=True)
            with contextlib.ExitStack() as files:
                log = None if rank == 0 else files.enter_context(self._log(rank).open("wb"))
                process = subprocess.Popen(
                    command, env=environment | self._variables(rank), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            self._processes.append(process)
        if self.stop_number is not None:  # it came before all ranks were there
            self._send(self.stop_number)

    def wait(self) -> int:
        """Wait for all ranks, report the failed one that explains the others, and return the job's exit code."""
        while len(self._ends) < self.num_ranks:
            for rank, process in enumerate(self._processes):
                if rank not in self._ends and (code := process.poll()) is not None:
                    self._ends[rank] = read_end(rank, code, self._error_file(rank), seen_at=time.monotonic())
            if self.stop_number is None and any(end.exit_code for end in self._ends.values()):
                break
            if self.stop_number is not None and time.monotonic() - self._stopped_at > self._grace_seconds:
                self._send(signal.SIGKILL)
            time.sleep(MONITOR_SECONDS)
        failures = [end for end in self._ends.values() if end.exit_code != 0]
        self.end_others(signal.SIGTERM)
        if not failures:
            return 0
        first = root_cause(failures)
        if not self._is_reported(first):
            tail = "" if first.rank == 0 or first.exit_code in REFUSALS else _tail(self._log(first.rank))
            lines = [describe(first, self.num_ranks, tail, self._log(first.rank)), self._last_activity(first)]
            sys.stderr.write("".join(f"{line}\n" for line in lines if line))
        return plain_exit_code(first.exit_code)

    def end_others(self, number: int) -> None:
        """End the ranks that still run, in FAILURE_GRACE_SECONDS at most."""
        self._send(number)
        deadline = time.monotonic() + FAILURE_GRACE_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """Pass a signal on to the ranks."""
        if self.stop_number is None:
            self.stop_number, self._stopped_at = number, time.monotonic()
            name, seconds = signal.Signals(number).name, f"{self._grace_seconds:.0f} s"
            sys.stderr.write(f"{name}: waiting up to {seconds} for the ranks to save and end; then they are killed.\n")
        self._send(number)

    def _send(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)  # nothing to a process that has ended

    def _is_reported(self, end: RankEnd) -> bool:
        """Return whether rank 0, whose output is on the terminal, has reported this end."""
        if end.rank == 0:
            return end.exit_code >= 0 or self.stop_number is not None
        of_first = read_end(0, end.exit_code, self._error_file(0), seen_at=end.time)
        return end.exit_code in REFUSALS and of_first.message is not None and of_first.message == end.message

    def _last_activity(self, end: RankEnd) -> str | None:
        """Name the last activity of a killed rank, from its heartbeat."""
        beat = read_beat(self._run_folder, end.rank)
        if end.exit_code >= 0 or beat is None:
            return None
        return f"its last activity: {beat.activity}" + (f" of step {beat.step}." if beat.step else ".")

    def _variables(self, rank: int) -> dict[str, str]:
        """Return a rank's variables, as torchrun names them."""
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "TORCHELASTIC_RESTART_COUNT": 0}
        sizes = {"WORLD_SIZE": self.num_ranks, "LOCAL_WORLD_SIZE": self.num_ranks}
        words = {"MASTER_ADDR": "localhost", "MASTER_PORT": 0, "TORCHELASTIC_RUN_ID": f"lmtrain-{os.getpid()}"}
        words |= {"TORCHELASTIC_ERROR_FILE": self._error_file(rank)}
        return {name: str(value) for name, value in {**ranks, **sizes, **words}.items()}

    def _log(self, rank: int) -> Path:
        return self._log_folder / f"rank{rank}.log"

    def _error_file(self, rank: int) -> Path:
        return self._log_folder / f"rank{rank}.error.json"


def _tail(path: Path) -> str:
    try:
        lines = path.read_bytes()[-65536:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-TAIL_LINES:])


def _record_end(run_folder: Path, code: int) -> None:
    """Correct the recorded end: killed ranks could not write it, and others may only have seen another one end."""
    status = read_status(run_folder)
    if status is None:
        if code in CLEAN_STOPS:  # before the first rank could write it
            write_status(run_folder, Status(status=status_name(code), exit_code=code))
    elif status.status == "RUNNING":
        ended = Status(status=status_name(code), exit_code=code, step=status.step, tokens=status.tokens)
        write_status(run_folder, ended)
    elif status.status == "FAILED" and status.exit_code != code:
        reason = None if code in CLEAN_STOPS else status.reason
        write_status(run_folder, replace(status, status=status_name(code), exit_code=code, reason=reason))
