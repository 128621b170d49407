"""A command that is refused leaves the run of its name as it was."""

import signal
from pathlib import Path

import pytest

from lmtrain.cli.main import serve
from tests import forked, tiny

STEPS = ["budget.steps=2"]
REFUSED = {
    "another identity": ["model=llama_micro"],
    "refused when it is built": ["model.num_heads=5"],
    "refused on ranks": ["model.num_heads=5", "trainer.devices=2", "trainer.accelerator=cpu"],
    "refused at a new start": ["model.num_heads=5", "resume=never"],
    "refused on ranks at a new start": ["model.num_heads=5", "resume=never", "trainer.devices=2"],
}


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a folder but for the lock's note."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project with one finished run."""
    folder = tmp_path_factory.mktemp("project")
    finished = tiny.train(folder, *STEPS, "run.name=notes")
    assert finished.returncode == 0, finished.stderr
    return folder


@pytest.mark.faults
@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_command_changes_nothing_in_the_runs_folder(words: list[str], trained: Path) -> None:
    before = files(trained / "runs")
    refused = tiny.train(trained, *STEPS, "budget.steps=4", "run.name=notes", *words)
    assert refused.returncode == 2, refused.stderr
    assert files(trained / "runs") == before


@pytest.mark.faults
def test_a_start_that_is_killed_before_it_trains_leaves_the_runs_settings_as_they_were(tmp_path: Path) -> None:
    assert tiny.train(tmp_path, *STEPS, "run.name=notes").returncode == 0
    changed = [*STEPS, "run.name=notes", "budget.steps=4", "model.feed_forward_width=96"]
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal\n"
        "from lmtrain.run.execution import run\n"
        "run.find_checkpoint = lambda job: os.kill(os.getpid(), signal.SIGKILL)\n"
        "import sys; from lmtrain.cli.main import serve; serve('train', sys.argv[1:], program='python train.py')\n"
    )
    killed = forked.run(script, [*tiny.TINY, *changed], folder=tmp_path, environment=tiny.environment())
    assert killed.returncode == -signal.SIGKILL
    assert serve("generate", [str(tmp_path / "runs/notes"), "--num-new-tokens", "3"], program="lmtrain generate") == 0
