"""The front door: every target explains itself, stays inside the project, and says what it lacks."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on the PATH")


def _make(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=inherited | variables, capture_output=True, text=True, check=False
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile and what it depends on, and nothing else."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_make_alone_lists_every_target(project: Path) -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, flags=re.MULTILINE)
    listed = [line.split()[1] for line in _make(project).stdout.splitlines()]
    assert sorted(listed) == sorted(phony.split())


def test_every_exported_folder_is_inside_the_project(project: Path) -> None:
    (project / "show.mk").write_text("show:\n\t@env\n")
    told = _make(project, "-f", "Makefile", "-f", "show.mk", "show", PYTHONDONTWRITEBYTECODE="1").stdout
    shown = dict(re.findall(r"^(\w+)=(.*)$", told, re.MULTILINE))
    assert "PYTHONDONTWRITEBYTECODE" not in shown  # every start would compile its imports anew
    folders = re.findall(r"^export (\w+) := (?!1$|never$)", MAKEFILE, flags=re.MULTILINE)
    assert len(folders) > 8
    if len(f"{project}/.cache/tmp") > 70:
        folders.remove("TMPDIR")
    assert [name for name in folders if not Path(shown[name]).is_relative_to(project / ".cache")] == []


def test_unfit_python_is_one_clear_line(project: Path) -> None:
    fake = project / "bin"
    fake.mkdir()
    for name in ("python3.13", "python3.12", "python3.11", "python3", "python"):
        (fake / name).write_text("#!/bin/sh\nexit 1\n")
        (fake / name).chmod(0o755)
    result = _make(project, "setup", PATH=f"{fake}{os.pathsep}{os.environ['PATH']}")
    assert result.returncode != 0
    (line,) = result.stderr.splitlines()
    assert "lmtrain needs Python 3.11, 3.12 or 3.13 on the PATH, and none of these starts" in line


def test_setup_installs_only_what_the_lock_has_hashes_of() -> None:
    installs = [line for line in MAKEFILE.splitlines() if "pip install" in line and "requirements.lock" in line]
    assert len(installs) == 2
    assert all("--require-hashes" in line for line in installs)
