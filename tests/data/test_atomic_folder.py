import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from lmtrain.data.atomic_folder import build_folder
from lmtrain.errors import EnvironmentProblem

SLOW_BUILD = """
import sys, time
from pathlib import Path
from lmtrain.data.atomic_folder import build_folder

def build(folder):
    (folder / "half").write_text("x")
    print("building", flush=True)
    time.sleep(float(sys.argv[2]))

print(build_folder(Path(sys.argv[1]), build, tell=lambda line: print(line, flush=True)), flush=True)
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


def test_a_folder_appears_whole_and_alone(tmp_path):
    assert build_folder(tmp_path / "root" / "data", fill, tell=print)
    assert (tmp_path / "root" / "data" / "deep" / "file").read_text() == "whole"
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["data"]


def test_a_folder_that_is_there_is_not_built_again(tmp_path):
    (tmp_path / "data").mkdir()
    assert not build_folder(tmp_path / "data", lambda _: pytest.fail("built again"), tell=print)


@pytest.mark.parametrize("error", [ValueError("bad text"), KeyboardInterrupt()])
def test_a_build_that_fails_leaves_nothing(tmp_path, error):
    def build(folder):
        fill(folder)
        raise error

    with pytest.raises(type(error)):
        build_folder(tmp_path / "data", build, tell=print)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "fix"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota"), (errno.EROFS, "read-only")]
)
def test_a_disk_that_refuses_is_named_with_a_fix_and_nothing_stays(tmp_path, code, fix):
    def build(folder):
        fill(folder)
        raise OSError(code, os.strerror(code))

    with pytest.raises(EnvironmentProblem, match=rf"data cannot be written: .*{fix}.*data\.folder\.root"):
        build_folder(tmp_path / "data", build, tell=print)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "root").write_text("in the way")
    with pytest.raises(EnvironmentProblem, match=r"a file is in the way: set data\.folder\.root"):
        build_folder(tmp_path / "root" / "data", fill, tell=print)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_root_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(EnvironmentProblem, match="permission denied"):
        build_folder(tmp_path / "data", fill, tell=print)


@pytest.mark.faults
def test_a_killed_build_leaves_no_folder_and_the_next_one_builds(tmp_path):
    with building(tmp_path / "data", 60) as (process, lines):
        assert lines.readline() == "building\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "data").exists()
    assert build_folder(tmp_path / "data", fill, tell=print)
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


@pytest.mark.faults
def test_many_at_once_build_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        built = pool.map(_build_quickly, [tmp_path / "data"] * 12)
    assert built.count(True) == 1


def _build_quickly(final):
    return build_folder(final, lambda folder: time.sleep(0.05) or fill(folder), tell=lambda _: None)
