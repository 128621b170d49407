"""Questions about the configuration are answered without importing anything heavy."""

import subprocess
import sys

import pytest

from tests.tiny import PROJECT, environment

HEAVY = {"torch", "lightning", "mlflow", "datasets", "tokenizers", "transformers", "pydantic", "rich", "numpy"}
ASK = """
import sys
from lmtrain.cli import serve
try:
    code = serve("train", sys.argv[1:], program="python train.py")
except SystemExit as end:
    code = end.code or 0
print("MODULES", code, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def ask(*words: str, **more: str) -> tuple[int, str, set[str]]:
    """Return the exit code, the answer, and the packages that were imported for it."""
    command = [sys.executable, "-c", ASK, *words]
    finished = subprocess.run(
        command, cwd=PROJECT, env={**environment(), **more}, capture_output=True, text=True, timeout=60, check=True
    )
    answer, _, modules = finished.stdout.rpartition("MODULES ")
    code, *names = modules.split()
    return int(code), answer, set(names)


def test_help_imports_nothing_heavy_not_even_hydra() -> None:
    code, answer, modules = ask("--help")
    assert code == 0
    assert "llama_3_2_1b" in answer
    assert not modules & (HEAVY | {"hydra", "omegaconf"})


def test_the_composed_config_is_printed_without_torch() -> None:
    code, answer, modules = ask("--cfg", "job", "--resolve", "model.width=96")
    assert code == 0
    assert "width: 96" in answer
    assert not modules & HEAVY


def test_tab_completion_answers_without_torch() -> None:
    line = "python train.py model=ll"
    code, answer, modules = ask("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert code == 0
    assert "model=llama_tiny" in answer
    assert not modules & HEAVY


@pytest.mark.parametrize("word", ["optimizer.lrr=1", "model=lama_tiny"])
def test_a_wrong_key_is_refused_without_torch(word: str) -> None:
    code, _, modules = ask(word)
    assert code == 2
    assert not modules & HEAVY
