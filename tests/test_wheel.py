"""The wheel works from an empty folder, in an environment that has never seen this project."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests import tiny


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    script = (
        f"import hatchling.build, os; os.chdir({str(tiny.PROJECT)!r}); hatchling.build.build_wheel({str(folder)!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_two_packages(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"lmtrain", "data_pipelines"}
    assert "lmtrain/conf/train.yaml" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.slow
def test_the_wheel_trains_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """Installed packages are those of the test environment; lmtrain itself comes from the wheel alone."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    packages = next(environment.glob("lib/python3.*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    installed = next(Path(sys.prefix).glob("lib/python3.*/site-packages"))
    for path in installed.iterdir():  # not as a path of packages: its .pth files would bring this project's sources
        if not (path.name.endswith(".pth") or "lmtrain" in path.name or (packages / path.name).exists()):
            (packages / path.name).symlink_to(path)
    folder = tmp_path / "empty"
    folder.mkdir()
    python = environment / "bin" / "python"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}

    def run(*words: str) -> str:
        ended = subprocess.run([python, *words], cwd=folder, env=clean, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    shown = run("-c", "import lmtrain; print(lmtrain.__file__, lmtrain.__version__)").split()
    assert shown == [str(packages / "lmtrain" / "__init__.py"), "0.2.0"]
    small = [*tiny.MODEL, *tiny.DATA, *tiny.BATCH]
    run("-m", "lmtrain.cli", "train", "debug=tiny", *small, "budget.steps=2", "run.name=first")
    assert run("-c", "import lmtrain; print(len(lmtrain.runs()[0].losses))") == "2\n"
