"""Composition gives the same configuration under the pre-release of Hydra 1.4 (`make hydra-next` installs it aside)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny

NEXT = tiny.PROJECT / ".cache" / "hydra14"

pytestmark = [pytest.mark.external, pytest.mark.skipif(not NEXT.is_dir(), reason="hydra 1.4 is not in the lock")]


def _run(folder: Path, *words: str, paths: tuple[Path, ...] = ()) -> "subprocess.CompletedProcess[str]":
    environment = tiny.environment()
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), environment["PYTHONPATH"]])
    command = [sys.executable, "-m", "lmtrain.cli", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("experiment=nano_d12", "model.depth=24"),
        ("model=llama_3_8b", "strategy=fsdp", "optimizer=adamw", "callbacks=[default,early_stopping]"),
        ("task=dpo", "adapter=lora", "source.paths=[pairs.jsonl]", "init_from=runs/base"),
        ("data=mixture", "data.sources.web.path=data/web"),
        ("optimizer.lrr=1e-3",),
        ("optimizer=adamx",),
    ],
    ids=lambda words: " ".join(words) or "default",
)
def test_the_configuration_and_the_refusals_are_the_same(words: tuple[str, ...], tmp_path: Path) -> None:
    now, later = (_run(tmp_path, "train", "--cfg", "job", *words, paths=paths) for paths in ((), (NEXT,)))
    assert (later.returncode, later.stdout) == (now.returncode, now.stdout)
    assert _messages(later) == _messages(now)


def _messages(ended: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return our own lines: 1.4 also warns of parameters that 1.5 will drop."""
    return [line for line in ended.stderr.splitlines() if line.startswith("lmtrain:")]


def test_a_run_trains(tmp_path: Path) -> None:
    ended = _run(tmp_path, "train", *tiny.TINY, "budget.steps=2", "run.name=first", paths=(NEXT,))
    assert ended.returncode == 0, ended.stderr
    assert len(tiny.losses(tmp_path / "runs" / "first")) == 2
