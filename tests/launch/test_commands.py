"""Several ranks from the command line: our own launcher, torchrun, and a sweep with a trial that fails."""

import json
import os
from pathlib import Path

import pytest

from tests import tiny

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


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


@pytest.mark.distributed
def test_our_launcher_and_torchrun_train_the_same(tmp_path: Path) -> None:
    ours = tiny.start(tmp_path, "budget.steps=6", "run.name=ours", "trainer.devices=2")
    assert ours.returncode == 0, ours.stderr
    theirs = tiny.start(tmp_path, "budget.steps=6", "run.name=theirs", launcher=TORCHRUN)
    assert theirs.returncode == 0, theirs.stderr
    assert tiny.losses(tmp_path / "runs/ours") == tiny.losses(tmp_path / "runs/theirs")
    assert ours.stdout.count("Bits per byte") == theirs.stdout.count("Bits per byte") == 1
    assert processes_of(tmp_path) == []


@pytest.mark.distributed
def test_a_sweep_over_two_ranks_goes_on_after_a_failing_trial(tmp_path: Path) -> None:
    words = ["-m", "model.embedding_init_std=1e38,0.5", "trainer.devices=2", "budget.steps=6", "run.name=s", "seed=3"]
    swept = tiny.start(tmp_path, *words)
    trials = sorted((tmp_path / "runs/s").iterdir())
    ended = [json.loads((trial / "status.json").read_text()) for trial in trials]
    assert sorted(status["status"] for status in ended) == ["FAILED", "FINISHED"], swept.stderr
    assert swept.returncode == 3
    assert swept.stdout.count(" done\n") == 1
    assert "failed, exit code 3" in swept.stdout
    assert len({status["sweep"] for status in ended}) == 1
    assert processes_of(tmp_path) == []
