"""Data set folders are whole and checked."""

import errno
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from lmtrain.data.dataset_folder import build_folder, require_whole
from lmtrain.data.shards import Dataset
from lmtrain.errors import DataError, EnvironmentProblem
from tests.data.documents import make_dataset

SLOW_BUILD = """
import sys, time
from pathlib import Path
from lmtrain.data.dataset_folder import build_folder

def build(folder):
    (folder / "half").write_text("x")
    print("building", flush=True)
    time.sleep(float(sys.argv[2]))

sys.stderr = sys.stdout
print(build_folder(Path(sys.argv[1]), build), flush=True)
"""


@contextmanager
def building(final, seconds):
    """Start a build in a process of its own and give it once it has begun, with its further lines."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_BUILD, str(final), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    with process:
        yield process, process.stdout


def fill(folder):
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("whole")


@pytest.mark.parametrize("error", [ValueError("bad text"), KeyboardInterrupt()])
def test_a_build_that_fails_leaves_nothing(tmp_path, error):
    def build(folder):
        fill(folder)
        raise error

    with pytest.raises(type(error)):
        build_folder(tmp_path / "data", build)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "fix"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota"), (errno.EROFS, "read-only")]
)
def test_a_disk_that_refuses_is_named_with_a_fix_and_nothing_stays(tmp_path, code, fix):
    def build(folder):
        fill(folder)
        raise OSError(code, os.strerror(code))

    with pytest.raises(EnvironmentProblem, match=rf"data cannot be written: .*{fix}.*data\.folder\.root"):
        build_folder(tmp_path / "data", build)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.faults
def test_a_killed_build_leaves_no_folder_and_the_next_one_builds(tmp_path):
    with building(tmp_path / "data", 60) as (process, lines):
        assert lines.readline() == "building\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "data").exists()
    assert build_folder(tmp_path / "data", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["deep"]


@pytest.mark.faults
def test_the_second_of_two_waits_for_the_first(tmp_path):
    with building(tmp_path / "data", 1.5) as (_, first):
        assert first.readline() == "building\n"
        with building(tmp_path / "data", 0) as (_, second):
            assert "data: waiting for another process" in second.readline()
            assert second.read() == "False\n"
        assert first.read() == "True\n"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


FILES = ["train_00000.ds", "train_00001.ds", "train_00000.ds.index"]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Two shards of six ids."""
    return make_dataset(tmp_path / "tiny", [6, 6], shard_tokens=6)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("was_checked", [False, True])
def test_one_flipped_bit_is_an_error_of_the_data(dataset: Dataset, name: str, was_checked: bool) -> None:
    if was_checked:
        require_whole(dataset)
    flip_a_bit(dataset.folder / name)
    for _ in range(2):  # and stays one
        with pytest.raises(DataError, match=rf"{name} is damaged: its sha256"):
            require_whole(dataset)
