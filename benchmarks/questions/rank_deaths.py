"""A rank killed in training: how long until its job has ended, and with which words?

`kill -9` of one of four ranks of a node, and of a rank or the agent of one of two nodes (two torchrun agents on
loopback), some times each; each line has the seconds from the kill to the end of all processes, and the load of the
machine.

    python benchmarks/questions/rank_deaths.py --times 5
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.harness.reliability.warm_starts import WORDS  # noqa: E402
from lmtrain.tracking.hangs.heartbeat import Beat, read_beats  # noqa: E402

ENVIRONMENT: Final = os.environ | {"OMP_NUM_THREADS": "1"}
LONG: Final = ("budget.steps=1000000", "strategy=ddp", "cluster=cpu")
NUM_RANKS: Final = {"a rank of one node": 4, "a rank of two nodes": 2, "an agent of two nodes": 2}
BEGIN_SECONDS: Final = 300
END_SECONDS: Final = 120


def started(folder: Path, case: str) -> list[subprocess.Popen[str]]:
    """Start a training: one command of ours, or the agents of two nodes."""
    words = [*WORDS, *LONG, "run.name=a", "run.root=runs"]
    words.append(f"batch.tokens_per_step={16 * 4 * NUM_RANKS[case]}")
    if case == "a rank of one node":
        return [_begun([*_lmtrain(), "train", *words, f"trainer.devices={NUM_RANKS[case]}"], folder, "node0")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"--address=127.0.0.1:{free.getsockname()[1]}"
    command = [*_lmtrain(), "launch", "torchrun", *words, "cluster.num_nodes=2", address, "--dry-run", "--json"]
    told = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    commands: list[list[str]] = json.loads(told)["commands"]
    return [_begun(one, folder, f"node{number}") for number, one in enumerate(commands)]


def _lmtrain() -> list[str]:
    return [sys.executable, "-m", "lmtrain.cli"]


def _begun(command: list[str], folder: Path, name: str) -> subprocess.Popen[str]:
    path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
    with (folder / name).open("w") as said:
        return subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT | {"PATH": path}, stdout=said, stderr=said, text=True
        )


def until(is_so: Callable[[], bool], *, seconds: float) -> None:
    """Wait for a condition.

    Raises: TimeoutError.
    """
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)


def beats(folder: Path, case: str) -> list[Beat]:
    """Return the ranks' beats of a run under way."""
    return read_beats(folder / "runs/a", NUM_RANKS[case])


def death(folder: Path, case: str) -> tuple[tuple[float, float], list[int], str]:
    """Kill within a training; return the seconds to the end of ranks and commands, exit codes, the first's words."""
    nodes = started(folder, case)
    try:
        until(
            lambda: len(beats(folder, case)) == NUM_RANKS[case] and min(one.step for one in beats(folder, case)) > 20,
            seconds=BEGIN_SECONDS,
        )
        ranks = beats(folder, case)
        before = len((folder / "node0").read_text())
        killed = time.monotonic()
        os.kill(nodes[1].pid if case.startswith("an agent") else ranks[1].process, signal.SIGKILL)
        until(lambda: not any(_lives(one.process) for one in ranks), seconds=END_SECONDS)
        of_ranks = time.monotonic() - killed
        until(lambda: all(node.poll() is not None for node in nodes), seconds=END_SECONDS)
        taken = of_ranks, time.monotonic() - killed
    finally:
        for node in nodes:
            node.kill()
    return taken, [node.wait() for node in nodes], (folder / "node0").read_text()[before:].strip()


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main(words: list[str]) -> int:
    """Kill, and print a line a death."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--cases", nargs="*", choices=NUM_RANKS, default=list(NUM_RANKS))
    asked = parser.parse_args(words)
    for case in asked.cases:
        seconds: list[tuple[float, float]] = []
        for number in range(asked.times):
            with tempfile.TemporaryDirectory() as name:
                load = os.getloadavg()[0]
                taken, codes, said = death(Path(name), case)
            seconds.append(taken)
            print(
                f"{case}: ranks {taken[0]:.2f} s, commands {taken[1]:.2f} s, exit codes {codes}, load {load:.1f}",
                flush=True,
            )
            if number == 0:
                print("".join(f"    {line}\n" for line in said.splitlines()), end="")
        for name, one in zip(("ranks", "commands"), zip(*seconds, strict=True), strict=True):
            print(f"{case}: {name} end after {statistics.median(one):.2f} s (median), {max(one):.2f} s at most")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
