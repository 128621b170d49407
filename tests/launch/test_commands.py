"""Several ranks from the command line: our own launcher, torchrun, and a sweep with a trial that fails."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from lmtrain.cli.commands.launch import launch
from tests import tiny
from tests.launch.slurm_cluster import poll


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of living processes that mention a folder."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            found += [words] if str(folder) in words else []
    return found


def start_nodes(folder: Path, commands: list[list[str]]) -> "list[subprocess.Popen[bytes]]":
    """Start the nodes' agents; the output of each goes to a file."""
    started: list[subprocess.Popen[bytes]] = []
    for node, command in enumerate(commands):
        with (folder / f"node{node}").open("w") as output:
            started.append(
                subprocess.Popen(command, cwd=folder, env=tiny.environment(), stdout=output, stderr=subprocess.STDOUT)
            )
    return started


WORDS = ("budget.steps=100", "callbacks.checkpoint.every_steps=10", "callbacks.checkpoint.every_seconds=null", "seed=3")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, subprocess.CompletedProcess[str]]":
    """Return the folder of a sweep of two trials by our launcher, the first of which fails, and how it ended."""
    folder = tmp_path_factory.mktemp("swept")
    words = ["-m", "model.embedding_init_std=1e38,0.5", "trainer.devices=2", "run.name=s"]
    return folder, tiny.start(folder, *WORDS, *words)


@pytest.mark.distributed
def test_a_sweep_over_two_ranks_goes_on_after_a_failing_trial(swept) -> None:
    folder, ended = swept
    statuses = [json.loads(file.read_text()) for file in (folder / "runs/s").glob("*/status.json")]
    assert sorted(status["status"] for status in statuses) == ["FAILED", "FINISHED"], ended.stderr
    assert ended.returncode == 3
    assert "2 trials: 1 diverged, 1 finished" in ended.stdout
    assert len({status["sweep"] for status in statuses}) == 1
    assert processes_of(folder) == []


@pytest.mark.distributed
@pytest.mark.faults
def test_two_nodes_whose_one_agent_is_killed_end_go_on_and_train_as_our_launcher_does(
    swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, ours = swept
    [finished] = [file.parent for file in (folder / "runs/s").glob("*/status.json") if '"FINISHED"' in file.read_text()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"--address=127.0.0.1:{free.getsockname()[1]}"
    words = [*tiny.TINY, *WORDS, "model.embedding_init_std=0.5", "run.name=theirs", "cluster=cpu"]
    assert launch(["torchrun", *words, "cluster.num_nodes=2", address, "--dry-run", "--json"]) == 0
    commands = json.loads(capsys.readouterr().out)["commands"]
    run = tmp_path / "runs/theirs"
    nodes = start_nodes(tmp_path, commands)
    poll(lambda: (run / "metrics.jsonl").exists() and len(tiny.losses(run)) > 10, seconds=120)
    nodes[1].kill()  # the agent alone: its rank is to go with it
    killed = time.monotonic()
    assert [node.wait(60) != 0 for node in nodes] == [True, True]
    assert time.monotonic() - killed < 30  # 11 at a load of 18; a rank that waits for its peer alone takes minutes
    poll(lambda: processes_of(tmp_path) == [], seconds=10)
    stopped = len(tiny.losses(run))
    assert 10 < stopped < 100

    nodes = start_nodes(tmp_path, commands)
    output = [(node.wait(120), (tmp_path / f"node{number}").read_text()) for number, node in enumerate(nodes)]
    assert [code for code, _ in output] == [0, 0], output
    assert "continuing from step " in output[0][1]
    assert tiny.losses(run) == tiny.losses(finished)
    assert [text.count("Bits per byte") for text in (ours.stdout, output[0][1], output[1][1])] == [1, 1, 0]
