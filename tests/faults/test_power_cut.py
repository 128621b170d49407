"""After a cut of power at any moment, a run's own command trains to the same losses: ext4 is cut by an ioctl."""

import os
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lmtrain.storage.hashed_folder import damage
from tests import forked, tiny
from tests.faults.power_cut import EXIT_CUT

WORDS = ["budget.steps=6", "callbacks.checkpoint.every_steps=2", "run.name=a"]
NUM_CUTS = max(8, int(os.environ.get("LMTRAIN_FUZZ_EXAMPLES", "0")) // 10)
SCRIPT = tiny.PROJECT / "tests/faults/power_cut.py"


@contextmanager
def mounted(image: Path, folder: Path) -> Generator[Path]:
    """Mount a file as a disk, for a while."""
    subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        until = time.monotonic() + 20
        while subprocess.run(["umount", folder], check=False, capture_output=True).returncode:
            assert time.monotonic() < until, "a process of the run still holds the disk"
            time.sleep(0.1)


def format_disk(path: Path) -> None:
    """Make an empty disk of 256 MB in a sparse file."""
    with path.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.ext4", "-q", path], check=True, capture_output=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "disk.img"
    (tmp_path / "disk").mkdir()
    try:
        format_disk(path)
        with mounted(path, tmp_path / "disk"):
            pass
    except (OSError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"no small disk can be mounted: {problem}")
    return path


def _train(mount: Path, folder: Path, *, cut_at: int) -> "subprocess.CompletedProcess[str]":
    words = [str(mount), str(cut_at), *tiny.TINY, *WORDS, f"run.root={mount}/runs"]
    return forked.run(SCRIPT, words, folder=folder, environment=tiny.environment())


@pytest.mark.faults
def test_a_run_goes_on_after_a_cut_of_power(image: Path, tmp_path: Path) -> None:
    disk, whole = tmp_path / "disk", tmp_path / "whole"
    for folder in (tmp_path / "prepared", whole):  # the first also prepares the data, on the disk that stays
        folder.mkdir()
        untouched = _train(folder, tmp_path, cut_at=0)
        assert untouched.returncode == 0, untouched.stderr
    num_changes = int(untouched.stdout.rpartition("CHANGES ")[2])
    losses = tiny.losses(whole / "runs/a")
    for number in range(NUM_CUTS):
        cut_at = 1 + number * (num_changes - 1) // NUM_CUTS
        format_disk(image)
        with mounted(image, disk):
            cut = _train(disk, tmp_path, cut_at=cut_at)
            assert cut.returncode == EXIT_CUT, cut.stderr
        with mounted(image, disk):
            again = _train(disk, tmp_path, cut_at=0)
            assert again.returncode == 0, f"cut at change {cut_at} of {num_changes}: {again.stderr}"
            run = disk / "runs/a"
            assert tiny.losses(run) == losses, f"cut at change {cut_at} of {num_changes}"
            assert [damage(path) for path in (run / "checkpoints").glob("step_*") if damage(path)] == []
