"""Questions about the configuration are answered without importing anything heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.report import compared_folder, ledger_folder
from tests.tiny import PROJECT, environment

HEAVY = {"torch", "lightning", "mlflow", "datasets", "tokenizers", "transformers", "pydantic", "rich", "numpy"}
NUM_MODULES = {"help": 268, "cfg": 530, "plan": 550}  # a fifth more than it takes: what comes by oversight is many
ASK = """
import sys
from lmtrain.cli.main import serve
verb, *words = sys.argv[1:]
try:
    code = serve(verb, words, program="lmtrain")
except SystemExit as end:
    code = end.code or 0
print("MODULES", code, len(sys.modules), *sorted({name.partition(".")[0] for name in sys.modules}))
"""
ASK_ALL = """
import sys
from lmtrain.cli.main import serve
code = max(serve(*words[:1], words[1:], program="lmtrain") for words in map(str.split, sys.argv[1:]))
print("MODULES", code, len(sys.modules), *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def ask(*words: str, script: str = ASK, **more: str) -> tuple[int, str, int, set[str]]:
    """Return the exit code, the answer, how many modules were imported for it, and their packages."""
    command = [sys.executable, "-c", script, *words]
    finished = subprocess.run(
        command, cwd=PROJECT, env={**environment(), **more}, capture_output=True, text=True, timeout=60, check=True
    )
    answer, _, modules = finished.stdout.rpartition("MODULES ")
    code, num_modules, *names = modules.split()
    return int(code), answer, int(num_modules), set(names)


def test_help_imports_nothing_heavy_not_even_hydra() -> None:
    code, answer, num_modules, packages = ask("train", "--help")
    assert code == 0
    assert "llama_tiny" in answer
    assert not packages & (HEAVY | {"hydra", "omegaconf"})
    assert num_modules < NUM_MODULES["help"]


def test_the_composed_config_is_printed_without_torch() -> None:
    code, answer, num_modules, packages = ask("train", "--cfg", "job", "--resolve", "model.width=96")
    assert code == 0
    assert "width: 96" in answer
    assert not packages & HEAVY
    assert num_modules < NUM_MODULES["cfg"]


def test_a_plan_of_a_known_model_needs_no_torch() -> None:
    code, answer, num_modules, packages = ask("plan", "model=llama_3_2_1b", "cluster=h100_8x")
    assert code == 0
    assert "1,235,814,400" in answer
    assert not packages & (HEAVY - {"rich"})
    assert num_modules < NUM_MODULES["plan"]


OF_FOLDERS = ("ls RUN", "show RUN", "tail RUN --once", "ledger RUN", "report RUN", "compare RUN")


def test_what_only_reads_the_folders_of_runs_loads_no_torch(tmp_path: Path) -> None:
    run = ledger_folder.write(compared_folder.write(tmp_path / "a"), status="FINISHED")
    lines = [line.replace("RUN", str(run)) for line in OF_FOLDERS]
    code, answer, _, packages = ask(*lines, script=ASK_ALL)
    assert code == 0, answer
    assert "Where it is" in answer
    assert not packages & (HEAVY - {"rich"})


def test_tab_completion_answers_without_torch() -> None:
    code, answer, _, packages = ask("completion", "words", "train", "model=ll")
    assert code == 0
    assert "model=llama_tiny" in answer
    assert not packages & HEAVY


@pytest.mark.parametrize(
    "word",
    [
        "optimizer.lrr=1",
        "model=lama_tiny",
        "optimzer=adamw",
        "batch.context_tokens=banana",
        "model.width=-3",
        "resume=must",
        "source=files",
        "adapter=lora",
    ],
)
def test_a_wrong_key_or_value_is_refused_without_torch(word: str) -> None:
    code, _, num_modules, packages = ask("train", word, "run.name=never_begun")  # the project may hold a run
    assert code == 2
    assert not packages & HEAVY
    assert num_modules < NUM_MODULES["cfg"]
