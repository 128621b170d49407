"""A run's folder may come from a stranger: no link in it lets a command write to another file of this person's."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lmtrain.cli.main import serve
from lmtrain.errors import EXIT_ENVIRONMENT, EnvironmentProblem
from lmtrain.storage.durable import open_inside, write_durably
from lmtrain.tracking.atomic_files import LineFile, file_lock, is_held
from lmtrain.tracking.run_folder import RunFolder
from tests import tiny

WORDS = [*tiny.TINY, "run.name=a"]
CONTENT = "precious\n"
FILES = [
    "metrics.jsonl",
    "samples.jsonl",
    ".lock",
    "status.json",
    "run.json",
    ".status.json.1.tmp",
    "mlflow_state.json",
]
FOLDERS = ["events", "system", "attempts", "checkpoints", "evaluation", "held", "tokenizer"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny run and return the folder of its command."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert serve("train", [*WORDS, "budget.steps=2"], program="lmtrain train") == 0
    return folder


@pytest.fixture
def attacked(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that puts a link to a precious file or folder in place of a run's own; it returns that."""
    monkeypatch.chdir(tmp_path)

    def attack(name: str) -> Path:
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
        place, precious = tmp_path / "runs/a" / name, tmp_path / "precious"
        if name in FOLDERS:
            if place.exists():
                shutil.move(place, precious)
            precious.mkdir(exist_ok=True)
            (precious / "step_00000001").mkdir(exist_ok=True)
            (precious / "rank0.jsonl").write_text(CONTENT)
        else:
            place.unlink(missing_ok=True)
            precious.write_text(CONTENT)
        place.symlink_to(precious)
        return precious

    return attack


def contents(path: Path) -> dict[str, bytes]:
    """Return every file below a path."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(each): each.read_bytes() for each in files} | {str(each): b"" for each in path.rglob("*")}


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_going_on_with_a_run_writes_through_no_link(
    name: str, attacked: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    precious = attacked(name)
    before = contents(precious)
    assert serve("train", [*WORDS, "budget.steps=3"], program="lmtrain train") == EXIT_ENVIRONMENT
    assert f"{name} is a symbolic link" in capfd.readouterr().err
    assert contents(precious) == before


@pytest.mark.parametrize("name", FILES)
def test_listing_runs_writes_through_no_link(name: str, attacked: Callable[[str], Path]) -> None:
    precious = attacked(name)
    serve("ls", [], program="lmtrain ls")
    assert precious.read_text() == CONTENT


def test_no_file_is_opened_through_a_link(tmp_path: Path) -> None:
    run, precious = tmp_path / "run", tmp_path / "precious"
    run.mkdir()
    precious.write_text(CONTENT)
    (run / "file").symlink_to(precious)
    (run / "folder").symlink_to(tmp_path)
    for name in ("file", "folder/precious"):
        with pytest.raises(OSError, match=r"symbolic|directory"):
            open_inside(run, name, os.O_WRONLY | os.O_TRUNC)
        with pytest.raises(EnvironmentProblem):
            LineFile(run, name)
    with pytest.raises(EnvironmentProblem, match="symbolic link"), file_lock(run / "file", wait_seconds=0):
        pass
    assert is_held(run / "file")  # not known, so nothing is done to the run
    write_durably(run / "file", b"own")
    assert precious.read_text() == CONTENT
    assert (run / "file").read_text() == "own"


def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(EnvironmentProblem, match="pipe"):
        LineFile(tmp_path, "metrics.jsonl")


def test_wandbs_own_links_are_fine(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "latest-run").symlink_to(tmp_path)
    RunFolder(tmp_path).require_own_files()
