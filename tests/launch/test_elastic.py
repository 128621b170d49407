"""Two nodes under torchrun's elastic agents: one is lost, the run goes on with the other, and the first comes back."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests import tiny

WORDS = [
    *("strategy=fsdp", "trainer.devices=1", "trainer.accelerator=cpu", "optimizer=adamw", "optimizer.lr=1e-4"),
    *("budget=steps", "budget.steps=500", "callbacks.checkpoint.every_steps=10", "run.name=run", "resume=auto"),
]
WAIT_SECONDS = 250
TOLERANCE = 1e-4  # one rank and two round sums differently, and every step adds to it


@contextlib.contextmanager
def node(folder: Path, port: int) -> Generator["subprocess.Popen[bytes]"]:
    agent = [
        "-m",
        "torch.distributed.run",
        "--nnodes=1:2",
        "--nproc-per-node=1",
        "--max-restarts=9",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-conf=last_call_timeout=3",
    ]
    environment = {**tiny.environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (folder / "node.log").open("ab") as log:
        command = tiny.command(*WORDS, launcher=tuple(agent))
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        lose(process)


def lose(process: "subprocess.Popen[bytes]") -> None:
    """Kill an agent and its rank."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    for number in (process.pid, *map(int, found.stdout.split())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()


def num_steps(folder: Path) -> int:
    path = folder / "runs/run/metrics.jsonl"
    return path.read_bytes().count(b'"train/loss"') if path.exists() else 0


def is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def until(happened: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline, (folder / "node.log").read_text()[-3000:]
        time.sleep(0.1)


def wait_for_steps(folder: Path, number: int) -> None:
    """Wait until that many more steps have been logged."""
    number += num_steps(folder)
    until(lambda: num_steps(folder) >= number, folder)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_lost_node_leaves_the_run_to_the_other_and_joins_it_again(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with node(tmp_path, port) as kept:
        until(lambda: is_open(port), tmp_path)  # the first agent keeps the meeting place
        with node(tmp_path, port) as lost:
            wait_for_steps(tmp_path, 15)
            lose(lost)
        wait_for_steps(tmp_path, 5)
        with node(tmp_path, port) as returned:
            assert (kept.wait(WAIT_SECONDS), returned.wait(WAIT_SECONDS)) == (0, 0)
    attempts = sorted((tmp_path / "runs/run/attempts").iterdir())
    nodes = [json.loads((attempt / "devices.json").read_text())["num_nodes"] for attempt in attempts]
    assert nodes == [2, 1, 2]
    assert tiny.start(tmp_path, *WORDS, "run.name=alone").returncode == 0
    alone, elastic = (tiny.losses(tmp_path / "runs" / name) for name in ("alone", "run"))
    assert alone.keys() == elastic.keys()
    assert [*elastic.values()] == pytest.approx([*alone.values()], abs=TOLERANCE)
