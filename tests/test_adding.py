"""docs/adding.md, followed to the letter: its files, put into a copy of the project, train and pass their own tests."""

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny

PAGE = (tiny.PROJECT / "docs" / "adding.md").read_text()
FENCED_FILE = re.compile(r"^`([^`\n]+)`\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # headed by its path
FILES = dict(FENCED_FILE.findall(PAGE))
COPIED = ("conf", "src", "data_pipelines", "tests", "train.py", "pyproject.toml")
NAMES = "bigram or signum or epochs"
PARTS = ["model=bigram", "optimizer=signum", "callbacks=[default,epochs]"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the files of the page in it."""
    folder = tmp_path_factory.mktemp("project")
    for name in COPIED:
        source = tiny.PROJECT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    for path, text in FILES.items():
        assert not (folder / path).exists(), f"{path} is there already"
        (folder / path).write_text(text)
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file of a project, but for what running it leaves behind."""
    kept = (path for name in COPIED for path in (folder / name, *(folder / name).rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in kept
        if path.suffix != ".pyc"
    }


def run(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in the copy, with the copy's own sources."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(project / "src"), str(project)])}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_three_parts_are_six_files_and_their_three_tests() -> None:
    kinds = [("tests" if path.startswith("tests/") else Path(path).suffix) for path in FILES]
    assert sorted(kinds) == [".py"] * 3 + [".yaml"] * 3 + ["tests"] * 3


def test_the_three_parts_train_together_and_no_old_file_changes(project: Path) -> None:
    before = contents(project)
    words = [*tiny.DATA, *tiny.BATCH, *tiny.QUIET, "run.log_every_steps=1", "run.name=toy", "budget.steps=3"]
    ended = run(project, "train.py", *words, *PARTS)
    assert ended.returncode == 0, ended.stderr
    points = [json.loads(line) for line in (project / "runs/toy/metrics.jsonl").read_text().splitlines()]
    epochs = [point["step"] for point in points if "data/epochs" in point["metrics"]]
    assert epochs == [1, 2, 3]
    losses = list(tiny.losses(project / "runs/toy").values())
    assert losses[0] == pytest.approx(math.log(512), abs=0.1)
    assert losses[2] < losses[0]
    config = (project / "runs/toy/config.yaml").read_text()
    assert all(
        target in config for target in ("models.bigram.Bigram", "optim.signum.signum", "callbacks.epochs.Epochs")
    )
    assert contents(project) == before


def test_their_own_tests_and_the_checks_of_their_options_pass(project: Path) -> None:
    tests = [path for path in FILES if path.startswith("tests/")]
    ended = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "tests/test_conf.py", "-k", NAMES)
    assert ended.returncode == 0, ended.stdout


def test_the_help_page_lists_them_by_the_first_line_of_their_options(project: Path) -> None:
    for path, text in FILES.items():
        if path.startswith("conf/"):
            page = run(project, "train.py", "--help", Path(path).parent.name).stdout
            described = text.splitlines()[0].removeprefix("# ")
            assert f"{Path(path).stem} {described}" in " ".join(page.split())
