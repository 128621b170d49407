"""A signal to one rank of two: a stopped rank ends the run within the strategy's timeout, an interrupt stops it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.launch.slurm_cluster import poll

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.faults]
TIMEOUT_SECONDS = 10


@contextmanager
def training(folder: Path) -> Generator[tuple["subprocess.Popen[str]", int]]:
    """Start a run on two ranks; yield its process and the process id of rank 1 once it has trained a few steps."""
    words = ["strategy=ddp", f"strategy.timeout_seconds={TIMEOUT_SECONDS}", "run.name=a", "budget.steps=100000"]
    command, run = tiny.command("trainer.devices=2", *words), folder / "runs/a"
    output: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, env=tiny.environment(), text=True, **output) as process:
        try:
            poll(lambda: (run / "metrics.jsonl").exists() and len(tiny.losses(run)) > 3, seconds=120)
            yield process, rank_1_of(run)
        finally:
            process.kill()


def rank_1_of(run: Path) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            words, variables = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes().split(b"\0")
            if b"lmtrain.launch.worker" in words and str(run).encode() in words and b"RANK=1" in variables:
                return int(entry.name)
    raise AssertionError("rank 1 is not running")


def test_a_rank_that_hangs_ends_the_run_within_the_timeout(tmp_path: Path) -> None:
    with training(tmp_path) as (process, rank_1):
        os.kill(rank_1, signal.SIGSTOP)
        stopped_at = time.monotonic()
        _, said = process.communicate(timeout=60)
    assert time.monotonic() - stopped_at < TIMEOUT_SECONDS + 15  # of a busy machine
    assert process.returncode == 1
    assert "another rank or the network failed" in said
    assert "Traceback" not in said
    assert json.loads((tmp_path / "runs/a/status.json").read_text())["status"] == "FAILED"


def test_an_interrupt_of_rank_1_alone_is_an_interruption_of_the_run(tmp_path: Path) -> None:
    with training(tmp_path) as (process, rank_1):
        os.kill(rank_1, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    status = json.loads((tmp_path / "runs/a/status.json").read_text())
    assert (status["status"], status["exit_code"]) == ("KILLED", 130)
