"""The files of a run: written whole, locked, appended to."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking import atomic_files
from lmtrain.tracking.run_folder import RunFolder, run_path
from lmtrain.tracking.status import Status, settled_status, write_status
from tests.small_disk import mount_small_disk, reason_for_none


def test_private_file_is_readable_by_its_owner_alone(tmp_path):
    atomic_files.write_text(tmp_path / "config.yaml", "password: x", private=True)
    assert stat.S_IMODE((tmp_path / "config.yaml").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b'{"half": ', b"[1, 2]"])
def test_missing_or_broken_json_reads_as_empty(tmp_path, content):
    assert atomic_files.read_json(tmp_path / "missing.json") == {}
    (tmp_path / "broken.json").write_bytes(content)
    assert atomic_files.read_json(tmp_path / "broken.json") == {}


def test_what_is_read_moves_no_cursor(tmp_path):
    (tmp_path / "run.json").write_text('{"name": "a\\u001b[2Jb\\u0007\\u009b\\n\\té"}')
    assert atomic_files.read_json(tmp_path / "run.json") == {"name": "a\ufffd[2Jb\ufffd\ufffd\n\té"}


def test_the_runs_config_is_that_of_the_newest_accepted_attempt(tmp_path):
    folder = RunFolder(tmp_path / "a")
    folder.create()
    accepted = folder.start_attempt("seed: 1\n", [])
    folder.accept_newest_attempt()
    refused = folder.start_attempt("seed: 2\n", [])
    for attempt in (refused, accepted):
        folder.withdraw(attempt)
    assert folder.config_path.read_text() == "seed: 1\n"
    assert folder.attempts() == [accepted]


def test_no_secret_is_in_a_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "a")
    folder.create()
    attempt = folder.start_attempt("logger:\n  api_key: canary\n", ["+hf_token=canary"])

    folder.accept_newest_attempt()
    assert all("canary" not in path.read_text() for path in attempt.iterdir())
    assert "canary" not in folder.config_path.read_text()


@pytest.mark.faults
def test_read_only_root_is_an_environment_problem(tmp_path):
    if reason := reason_for_none(tmp_path):
        pytest.skip(reason)
    read, write = os.pipe()
    if os.fork() == 0:
        mount_small_disk(tmp_path, num_bytes=1 << 20, is_read_only=True)  # root writes everywhere else
        try:
            RunFolder(tmp_path / "a").create()
        except EnvironmentProblem as problem:
            os.write(write, str(problem).encode())
        os._exit(0)
    os.close(write)
    os.wait()
    with os.fdopen(read) as told:
        said = told.read()
    assert "set run.root" in said
    assert "\n" not in said


@pytest.mark.parametrize("name", ["../a", "/etc", "a/../../b", "", ".", "a//b", "a b", "a\n", "~", "-a", "x" * 201])
def test_name_that_is_no_plain_path_is_refused(name):
    with pytest.raises(ConfigurationError, match=r"run\.name: must be a path of letters"):
        run_path(Path("runs"), name)


@pytest.mark.parametrize(("kept", "stays"), [(None, False), ("status.json", True), ("checkpoints/step_1", True)])
def test_only_a_run_that_never_began_is_discarded(tmp_path, kept, stays):
    folder = RunFolder(tmp_path / "refused")
    folder.create()
    folder.start_attempt("", [])
    if kept:
        (folder.path / kept).touch()
    folder.discard_untrained()
    assert folder.path.exists() == stays


HOLD = """
import sys
from pathlib import Path
from lmtrain.tracking.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.faults
def test_a_run_is_its_holder_s_until_that_is_killed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.create()
    write_status(folder.path, Status("RUNNING", process=1, step=3))
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        found = settled_status(folder.path)
        assert found is not None
        assert found.status == "RUNNING"
        refusal = pytest.raises(EnvironmentProblem, match=rf"run.name=a .*process {holder.pid}")
        with refusal, folder.lock(wait_seconds=0.1):
            pass
        holder.kill()
    with folder.lock(wait_seconds=2.0):
        pass
    found = settled_status(folder.path)
    assert found is not None
    assert (found.status, found.step) == ("KILLED", 3)
