"""Commands that cannot write end with one line and the exit code of an environment problem."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from lmtrain.errors import EXIT_ENVIRONMENT
from tests import tiny

COMMANDS = {
    "evaluate": ["evaluate", "runs/a", "--text", "notes.txt"],
    "sync": ["sync", "runs/a"],
    "report": ["report", "runs/a"],
    "export": ["export", "hf", "runs/a", "out"],
    "train": ["train", *tiny.TINY, "budget.steps=2", "run.name=b"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert tiny.train(folder, "run.name=a", "budget.steps=2", "model.vocab_size=512").returncode == 0
    (folder / "notes.txt").write_text("A text of some words.")
    return folder


def _limit_files() -> None:
    """Let this process write files of a kilobyte at most: `ulimit -f 1`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_files_of_a_kilobyte_at_most(command: str, trained: Path) -> None:
    environment = tiny.environment() | {"PYTHONDONTWRITEBYTECODE": "1"}  # Python 3.11 keeps a file that was cut short
    ended = subprocess.run(
        [sys.executable, "-m", "lmtrain.cli", *COMMANDS[command]], cwd=trained, env=environment,
        capture_output=True, text=True, check=False, preexec_fn=_limit_files,
    )  # fmt: skip
    assert ended.returncode == EXIT_ENVIRONMENT, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "lmtrain: " in ended.stderr.splitlines()[-1]
