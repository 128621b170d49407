"""Two replica groups under torchft's lighthouse: one is killed, the other goes on, and the first comes back."""

import contextlib
import importlib.util
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

import lmtrain
from tests import tiny

NUM_STEPS = 70
ALONE_STEPS = 20  # taken by the group that stays before the other comes, which is then behind
WORDS = [
    *("trainer.accelerator=cpu", "strategy=fsdp", "trainer.devices=1", "batch.micro_batch_sequences=1"),
    *("optimizer=adamw", "optimizer.lr=1e-4", "optimizer.eps=1e-4", "budget=steps", f"budget.steps={NUM_STEPS}"),
]
WAIT_SECONDS = 200
TOLERANCE = 1e-5  # gradients are added up in another order
LIGHTHOUSE = Path(sys.executable).parent / "torchft_lighthouse"

Process = subprocess.Popen[bytes]


@contextlib.contextmanager
def started(log: Path, *command: str) -> Generator[Process]:
    with log.open("ab") as file:
        process = subprocess.Popen(command, cwd=log.parent, env=tiny.environment(), stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Groups:
    """The groups of a lighthouse, each with a log for each of its starts."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def lighthouse(self) -> contextlib.AbstractContextManager[Process]:
        times = ("--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "2000", "--quorum_tick_ms", "50")
        place = ("--bind", f"127.0.0.1:{self.port}", "--min_replicas", "1")
        return started(self.folder / "lighthouse.log", str(LIGHTHOUSE), *place, *times)

    def group(self, name: str, *, log: str) -> contextlib.AbstractContextManager[Process]:
        words = (*WORDS, f"trainer.lighthouse=http://127.0.0.1:{self.port}", f"run.name={name}", "resume=auto")
        return started(self.folder / log, *tiny.command(*words))

    @contextlib.contextmanager
    def joining(self, stays: Process, name: str, *, log: str) -> Generator[Process]:
        """Start a group that is behind one that stays: paused, so that its run does not end before."""
        stays.send_signal(signal.SIGSTOP)
        with self.group(name, log=log) as process:
            self.wait_for_line(log, "replica group from step")
            stays.send_signal(signal.SIGCONT)
            yield process

    def wait_for_line(self, log: str, text: str) -> None:
        self._until(lambda: text in (self.folder / log).read_text())

    def wait_for_steps(self, name: str, number: int) -> None:
        """Wait until that many more steps have been logged."""
        number += self._num_steps(name)
        self._until(lambda: self._num_steps(name) >= number)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    def _num_steps(self, name: str) -> int:
        path = self.folder / "runs" / name / "metrics.jsonl"
        return path.read_bytes().count(b'"train/loss"') if path.exists() else 0

    def _until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not happened():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is built for Linux on x86 alone")
def test_a_killed_group_leaves_the_run_to_the_other_and_joins_it_again(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        groups = Groups(tmp_path, free.getsockname()[1])
    with groups.lighthouse(), groups.group("stays", log="stays.log") as stays:
        groups.wait_for_steps("stays", ALONE_STEPS)
        with groups.joining(stays, "returns", log="killed.log"):
            groups.wait_for_line("stays.log", "2 replica groups from step")
            groups.wait_for_steps("stays", 10)
        groups.wait_for_steps("stays", ALONE_STEPS)
        with groups.joining(stays, "returns", log="returned.log") as returned:
            assert (stays.wait(WAIT_SECONDS), returned.wait(WAIT_SECONDS)) == (0, 0), groups.logs()
    assert len([*(tmp_path / "runs/stays/attempts").iterdir()]) == 1
    assert tiny.train(tmp_path, *WORDS, "run.name=alone").returncode == 0
    alone, stayed, came = (tiny.losses(tmp_path / "runs" / name) for name in ("alone", "stays", "returns"))
    assert [*stayed] == [*alone] == [*range(1, NUM_STEPS + 1)]
    assert [*stayed.values()] == pytest.approx([*alone.values()], abs=TOLERANCE)
    with_other = [step for step in came if step > ALONE_STEPS]  # the state of the group that stayed came with them
    assert NUM_STEPS in with_other
    assert [came[step] for step in with_other] == [stayed[step] for step in with_other]
    assert not {*range(1, NUM_STEPS)} <= came.keys()
    one, other = (lmtrain.load(tmp_path / "runs" / name).module.state_dict() for name in ("stays", "returns"))
    assert all(torch.equal(one[name], other[name]) for name in one)
