"""The Dockerfiles pass hadolint, and the steps of the CPU image make an environment that trains.

No daemon runs here, so the steps run in an empty folder that has only the copied files; packages of the base image and
of apt-get are taken as they are.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import tiny

DOCKER = tiny.PROJECT / "docker"
HADOLINT = tiny.PROJECT / ".cache" / "hadolint" / "bin" / "hadolint"

pytestmark = pytest.mark.external


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not in the lock")
@pytest.mark.parametrize("image", ["cpu", "cuda"])
def test_hadolint_finds_nothing(image: str) -> None:
    linted = subprocess.run([HADOLINT, DOCKER / f"{image}.Dockerfile"], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")


def _steps(image: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile: `(COPY, its words)`, with continued lines joined."""
    text = (DOCKER / f"{image}.Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(re.split(r"\s+", line, maxsplit=1)) for line in lines]  # type: ignore[misc]


def _copy(words: str, folder: Path) -> None:
    *sources, target = words.split()
    for source in sources:
        found = tiny.PROJECT / source
        if found.is_dir():
            shutil.copytree(found, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(found, folder / target)


def test_the_steps_of_the_cpu_image_make_an_environment_that_trains(tmp_path: Path) -> None:
    folder = tmp_path / "lmtrain"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment = {name: value for name, value in environment.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment["UV_CACHE_DIR"] = str(tiny.PROJECT / ".cache" / "uv")  # downloaded once by `make setup`
    for instruction, words in _steps("cpu"):
        if instruction == "COPY":
            _copy(words, folder)
        elif instruction == "RUN" and not words.startswith("apt-get"):
            command = words.replace("make ", f"make UV_CACHE_DIR={environment['UV_CACHE_DIR']} ")
            made = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
            assert made.returncode == 0, made.stderr[-2000:]
        elif instruction == "ENV":
            name, value = words.split("=", 1)
            environment[name] = (
                value.strip('"').replace("/lmtrain/", f"{folder}/").replace("$PATH", environment["PATH"])
            )
    small = [*tiny.MODEL, *tiny.DATA, *tiny.BATCH, "budget.steps=2", "run.name=first"]
    for words in (["--help"], ["train", "debug=tiny", *small]):
        ended = subprocess.run(["lmtrain", *words], cwd=folder, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    assert (folder / "runs" / "first" / "metrics.jsonl").exists()
