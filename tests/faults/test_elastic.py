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
    *("budget=steps", "budget.steps=60", "callbacks.checkpoint.every_steps=10", "run.name=run", "resume=auto"),
]
WAIT_SECONDS = 250
TOLERANCE = 1e-4  # one rank and two round sums differently, and every step adds to it


@contextlib.contextmanager
def node(folder: Path, port: int, *, is_host: bool = False) -> Generator["subprocess.Popen[bytes]"]:
    agent = [
        "-m",
        "torch.distributed.run",
        "--nnodes=1:2",
        "--nproc-per-node=1",
        "--max-restarts=9",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        f"--rdzv-conf=is_host={is_host},last_call_timeout=3,keep_alive_interval=1",
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
    for number in (process.pid, *ranks_of(process)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()


def ranks_of(agent: "subprocess.Popen[bytes]") -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True, check=False)
    return [*map(int, found.stdout.split())]


@contextlib.contextmanager
def paused(process: int) -> Generator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def num_steps(folder: Path) -> int:
    path = folder / "runs/run/metrics.jsonl"
    return path.read_bytes().count(b'"train/loss"') if path.exists() else 0


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
    with node(tmp_path, port, is_host=True) as kept:
        with node(tmp_path, port) as lost:
            wait_for_steps(tmp_path, 15)
            lose(lost)
        wait_for_steps(tmp_path, 5)
        (rank,) = ranks_of(kept)
        with contextlib.ExitStack() as open_nodes:
            with paused(rank):  # the run must not end before the node is back
                returned = open_nodes.enter_context(node(tmp_path, port))
                until(lambda: f"process {rank} closing signal" in (tmp_path / "node.log").read_text(), tmp_path)
            assert (kept.wait(WAIT_SECONDS), returned.wait(WAIT_SECONDS)) == (0, 0)
    attempts = sorted((tmp_path / "runs/run/attempts").iterdir())
    nodes = [json.loads((attempt / "devices.json").read_text())["num_nodes"] for attempt in attempts]
    assert nodes == [2, 1, 2]
    assert tiny.train(tmp_path, *WORDS, "run.name=alone").returncode == 0
    alone, elastic = (tiny.losses(tmp_path / "runs" / name) for name in ("alone", "run"))
    assert alone.keys() == elastic.keys()
    assert [*elastic.values()] == pytest.approx([*alone.values()], abs=TOLERANCE)
