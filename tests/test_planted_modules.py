"""Commands in a stranger's folder run none of its Python: not the command itself, and none of its child processes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lmtrain.child_process import python_command, python_environment
from tests import tiny

PLANTED = (
    *("json", "random", "logging", "subprocess", "socket", "tempfile", "typing_extensions", "yaml", "numpy", "torch"),
    *("lightning", "mlflow", "datasets", "tokenizers", "hydra", "omegaconf", "rich", "pydantic", "uvicorn", "lmtrain"),
)
NO_CHILDREN = re.compile(r"child_process|missing_package|tracking.machine|launch\.py|engines.slurm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of modules, named as ours need them, that leave a file when they are imported."""
    folder = tmp_path_factory.mktemp("stranger")
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'imported')!r}, 'a').write({name!r} + '\\n')\n")
    return folder


def call(folder: Path, *words: str, code: int = 0) -> None:
    """Call a command in the folder, which must end with a code and without an import from there."""
    environment = {name: value for name, value in tiny.environment().items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, "-P", "-m", "lmtrain.cli", *words]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found = folder / "imported"
    assert not found.exists(), found.read_text()
    assert ended.returncode == code, ended.stderr


@pytest.mark.slow
def test_no_command_imports_from_the_working_folder(folder: Path) -> None:
    run = [*tiny.TINY, "logger=mlflow", "budget=steps", "budget.steps=2"]
    call(folder, "train", *run, "run.name=one", "callbacks.checkpoint.every_steps=1", "trainer.devices=2")
    for words in (["ls"], ["report", "runs/one"], ["ledger", "runs/one"], ["show", "runs/one"], ["sync", "runs/one"]):
        call(folder, *words)
    call(folder, "evaluate", "runs/one")
    call(folder, "doctor", *tiny.TINY)


@pytest.mark.slow
def test_preparing_in_several_processes_imports_nothing_from_the_working_folder(folder: Path) -> None:
    (folder / "texts").mkdir()
    for number in range(3):
        (folder / "texts" / f"{number}.txt").write_text("Some words to learn from.\n\n" * 400)
    words = ["source=files", "source.paths=[texts]", "tokenizer=byte_level", "data.folder.num_processes=2"]
    call(folder, "prepare", *words)


def test_a_child_and_its_own_child_import_nothing_from_the_working_folder(folder: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import json'], check=True)"
    subprocess.run(python_command("-c", program), cwd=folder, env=python_environment(), check=True)
    assert not (folder / "imported").exists()


def test_a_script_s_own_modules_stay_importable_in_its_children(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("VALUE = 3\n")
    (tmp_path / "script.py").write_text(
        "import subprocess\nfrom lmtrain.child_process import python_command, python_environment\n"
        "subprocess.run(python_command('-c', 'import mine'), env=python_environment(), check=True, cwd='/')\n"
    )
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=tiny.environment(), check=True)


def test_every_python_child_is_started_by_the_one_function() -> None:
    found = [
        f"{path.relative_to(tiny.PROJECT)}: {line.strip()}"
        for root in ("src", "data_pipelines")
        for path in (tiny.PROJECT / root).rglob("*.py")
        for line in path.read_text().splitlines()
        if "sys.executable" in line and '"-I"' not in line and not NO_CHILDREN.search(path.as_posix())
    ]
    assert found == []
