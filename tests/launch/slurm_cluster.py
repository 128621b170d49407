"""A real SLURM of two nodes on this machine, from the system's packages, in a folder of its own.

It needs root: a node's daemon starts tasks as their owner, and munge runs as a user of its own.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "runuser")
CONTROLLER_PORT, NODE_PORTS = 26_817, (27_001, 27_002)


def why_not() -> str | None:
    """Return why there can be no cluster here, None where there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {missing[0]}: apt-get install slurmctld slurmd slurm-client munge"
    return None if os.geteuid() == 0 else "SLURM's daemons need root"


@contextmanager
def cluster() -> Generator[dict[str, str]]:
    """Start the daemons, give the environment in which `srun` finds them, and end them."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short, for its sockets; munge's user may pass
    folder.chmod(0o711)
    for name in ("state", "n1", "n2", "munge"):
        (folder / name).mkdir(parents=True)
    started = [_munge(folder / "munge")]
    config = folder / "slurm.conf"
    config.write_text(_config(folder))
    environment = {**os.environ, "SLURM_CONF": str(config)}
    daemons = (["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"])
    try:
        started += [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for command in daemons]
        poll(lambda: _num_idle(environment) == 2, seconds=60)
        yield environment
    finally:
        with suppress(OSError):  # a failed test's jobs: their steps would outlive the daemons
            subprocess.run(["scancel", "--user=root", "--signal=KILL", "--full"], env=environment, check=False)
            subprocess.run(["scancel", "--user=root"], env=environment, check=False)
        for process in reversed(started):
            process.terminate()
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def poll(is_so: Callable[[], bool], *, seconds: float) -> None:
    """Wait for a state; a machine that never reaches it fails the test after so many seconds."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not so within {seconds} s"
        time.sleep(0.1)


def _munge(folder: Path) -> "subprocess.Popen[bytes]":
    """Start the daemon that signs messages, as the user that its package made."""
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    shutil.chown(folder, "munge", "munge")
    shutil.chown(key, "munge", "munge")
    folder.chmod(0o711)
    key.chmod(0o400)
    files = [
        f"--{name}={folder / name.removesuffix('-file')}" for name in ("key-file", "pid-file", "log-file", "seed-file")
    ]
    command = ["runuser", "-u", "munge", "--", "munged", "--foreground", "--force", f"--socket={folder}/socket", *files]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    poll(lambda: (folder / "socket").exists(), seconds=30)
    return process


def _num_idle(environment: dict[str, str]) -> int:
    asked = subprocess.run(
        ["sinfo", "-h", "-t", "idle", "-o", "%D"], env=environment, capture_output=True, text=True, check=False
    )
    return int(asked.stdout.strip() or 0) if asked.returncode == 0 else 0


def _config(folder: Path) -> str:
    nodes = [
        f"NodeName=n{number} NodeHostName=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 State=UNKNOWN"
        for number, port in enumerate(NODE_PORTS, start=1)
    ]
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": CONTROLLER_PORT,
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "CredType": "cred/munge",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "ReturnToService": 2,
        "SchedulerType": "sched/builtin",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "KillWait": 5,
        "JobRequeue": 1,
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmdSpoolDir": f"{folder}/%n",
        "SlurmdLogFile": f"{folder}/%n.log",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdParameters": "config_overrides",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    return "\n".join([*lines, *nodes, "PartitionName=all Nodes=n1,n2 Default=YES MaxTime=60 State=UP", ""])
