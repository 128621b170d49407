import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking.run_folder import RunFolder, run_path, stored_name
from tests.small_disk import mount_small_disk, reason_for_none

HOLDER = """
import sys, time
from pathlib import Path
from lmtrain.tracking.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_identity_is_made_once_and_stays(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.create()
    first = folder.read_identity()
    RunFolder(tmp_path / "runs" / "a").create(sweep="s")
    second = folder.read_identity()

    assert first["run"] == second["run"]
    assert second["sweep"] == "s"
    assert (second["name"], second["root"]) == ("a", str(tmp_path / "runs"))


@pytest.mark.parametrize(
    ("name", "folder", "stored"),
    [("cat", "cat", "cat"), ("p/cat", "cat.before-1", "p/cat.before-1"), ("cat", "moved", "cat"), ("ca", "cat", "ca")],
)
def test_a_run_after_which_another_began_under_its_name_has_its_folders(name, folder, stored, tmp_path):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "run.json").write_text(json.dumps({"name": name}))
    assert stored_name(tmp_path / folder) == stored


def test_attempts_count_up_and_keep_what_came_before(tmp_path):
    folder = RunFolder(tmp_path / "a")
    folder.create()
    first = folder.start_attempt("seed: 1\n", ["seed=1"])
    second = folder.start_attempt("seed: 2\n", ["seed=2"])

    assert folder.attempts() == [first, second]
    assert (first / "config.yaml").read_text() == "seed: 1\n"
    assert (second / "overrides.txt").read_text() == "seed=2\n"
    assert json.loads((second / "versions.json").read_text())["pytest"] == pytest.__version__


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
def test_second_process_on_a_run_is_refused_with_the_firsts_process_id(tmp_path):
    folder = RunFolder(tmp_path / "a")
    folder.create()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(EnvironmentProblem, match=rf"run.name=a .*process {holder.pid}"),
            folder.lock(wait_seconds=0.1),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate()


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
def test_name_that_is_no_plain_path_is_refused_with_a_valid_one(name):
    with pytest.raises(ConfigurationError, match="nearest valid: ") as caught:
        run_path(Path("runs"), name)
    nearest = str(caught.value).rpartition("nearest valid: ")[2].removesuffix(".")
    assert run_path(Path("runs"), nearest)


@pytest.mark.parametrize(("kept", "stays"), [(None, False), ("status.json", True), ("checkpoints/step_1", True)])
def test_only_a_run_that_never_began_is_discarded(tmp_path, kept, stays):
    folder = RunFolder(tmp_path / "refused")
    folder.create()
    folder.start_attempt("", [])
    if kept:
        (folder.path / kept).touch()
    folder.discard_untrained()
    assert folder.path.exists() == stays
