"""Start the ranks of one job on this machine and wait for them, from a light parent.

The chain of processes, each ending with the one before it:
    parent (composes; no torch) -> agent (one process group a job) -> one worker a rank, which reads the saved config
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from lmtrain.child_process import python_command, python_environment
from lmtrain.launch.detect import without_rank_variables
from lmtrain.launch.job import plain_exit_code
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.status import CLEAN_STOPS, Status, read_status, status_name, write_status

DEFAULT_ENTRY_POINT = "lmtrain.run.execution.start:run_saved"
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


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
    command = python_command("-m", "lmtrain.launch.agent", "--parent", str(os.getpid()))
    command += ["--num-processes", str(num_processes)]
    command += ["--grace-seconds", str(grace_seconds), "--log-folder", str(_log_folder(run_folder))]
    command += ["--run-folder", str(run_folder)]
    command += ["--entry-point", entry_point, "--config", str(config_path.absolute())]
    with _forwarding() as forwarder:
        ended = _run(command, forwarder, more_environment or {})
    code = plain_exit_code(ended)
    if ended < 0 and -ended not in FORWARDED_SIGNALS:
        sys.stderr.write(
            f"lmtrain: the process that started the ranks was killed by {signal.Signals(-ended).name}, and they ended "
            "with it; the same command goes on from the newest checkpoint.\n"
        )
    _record_end(run_folder, code)
    return code


@dataclass
class _Forwarder:
    process: "subprocess.Popen[bytes] | None" = None
    early: list[int] = field(default_factory=list[int])

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.process is None:
            self.early.append(number)
        else:
            self.process.send_signal(number)


def _run(command: list[str], forwarder: _Forwarder, more_environment: Mapping[str, str]) -> int:
    environment = {**without_rank_variables(python_environment()), **more_environment}
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True) as agent:
        forwarder.process = agent
        try:
            for number in forwarder.early:
                agent.send_signal(number)
            return agent.wait()
        finally:
            agent.kill()  # only after an exception here; the ranks follow their agent by themselves


@contextlib.contextmanager
def _forwarding() -> Generator[_Forwarder]:
    forwarder = _Forwarder()
    if threading.current_thread() is not threading.main_thread():
        yield forwarder
        return
    before = {number: signal.signal(number, forwarder) for number in FORWARDED_SIGNALS}
    try:
        yield forwarder
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log_folder(run_folder: Path) -> Path:
    attempts = RunFolder(run_folder).attempts()
    return attempts[-1] if attempts else run_folder


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
