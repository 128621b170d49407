"""Functions for ranks to call, importable by name in the processes that launch starts."""

import os

import pytest

RANKS = '''
import os, signal, subprocess, sys, time
from pathlib import Path
from lmtrain.errors import ConfigurationError, DataError

RANK = int(os.environ.get("RANK", "-1"))

def note(config, text):
    (config.parent / f"note{RANK}").write_text(str(text))

def wait(config):
    note(config, os.getpid())
    time.sleep(120)

def succeed(config):
    note(config, " ".join(f"{k}={os.environ.get(k)}" for k in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "NODE_RANK")))
    print(f"hello from rank {RANK}: {config.read_text()} terminal={sys.stdout.isatty()}", flush=True)

def meet():
    from lmtrain.launch.detect import outer_launcher
    from lmtrain.launch.process_group import join
    join(outer_launcher(os.environ), timeout_seconds=60)

def meet_and_wait(config):
    import torch.distributed as dist
    meet()
    dist.barrier()
    wait(config)

def raise_on_1(config):
    wait(config) if RANK == 0 else 1 / 0

def data_error_on_1(config):
    if RANK == 1:
        raise DataError("data.source=x has no files. Did you mean y?")
    wait(config)

def refused_on_all(config):
    raise ConfigurationError("seed=x is not a number. Did you mean 1?")

def refused_on_all_and_noticed_on_1(config):
    """Rank 0 has told its refusal, but has not ended, when rank 1 ends with the same one."""
    told = config.parent / "attempts/1/rank0.error.json"
    if RANK == 0:
        import atexit
        atexit.register(time.sleep, 60)
    while RANK == 1 and not (told.exists() and told.read_text().endswith("}")):
        time.sleep(0.02)
    refused_on_all(config)

def exit_4_on_1(config):
    return wait(config) if RANK == 0 else 4

def killed_on_1(config):
    from lmtrain.tracking.hangs import BeatFile
    BeatFile(config.parent, RANK).activity("backward", step=7)
    wait(config) if RANK == 0 else os.kill(os.getpid(), signal.SIGKILL)

def save_when_told(config):
    """A rank with a child in its process group, as a data loader worker is; it saves for a while, then leaves."""
    told = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda n, f: told.append(n))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note(config, os.getpid())
    while not told:
        time.sleep(0.02)
    time.sleep(0.1 + 0.4 * RANK)
    alive = child.poll() is None
    child.kill()
    note(config, f"saved, child alive: {alive}")
    return {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 85}[told[0]]

def ignore_signals(config):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait(config)
'''


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    (tmp_path / "rank_functions.py").write_text(RANKS)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), inherited])))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    folder = tmp_path / "run"
    (folder / "attempts" / "1").mkdir(parents=True)
    (folder / "config.yaml").write_text("same")
    return folder
