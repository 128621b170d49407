"""docs/adding.md, followed to the letter: its files, put into a copy of the project, train and pass their own tests."""

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
RUN = [*tiny.DATA, *tiny.BATCH, *tiny.QUIET, "run.log_every_steps=1"]
CODE = f"""
from lmtrain.cli.main import serve

words = {[*RUN, *PARTS, "run.name=toy", "batch.micro_batch_sequences=auto"]}
assert serve("train", [*words, "budget.steps=3"], program="train.py") == 0
assert serve("train", [*words, "budget.steps=5"], program="train.py") == 0
assert serve("export", ["hf", "runs/toy", "toy"], program="lmtrain export") == 2
assert serve("plan", [*words, "optimizer=adafactor", "strategy=fsdp"], program="lmtrain plan") == 2
assert serve("plan", ["--json", *words, "budget.steps=5"], program="lmtrain plan") == 0
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the files of the page in it."""
    folder = tmp_path_factory.mktemp("project")
    for name in COPIED:
        source = tiny.PROJECT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)  # with its bytecode, which would take seconds to make
        else:
            shutil.copy(source, folder)
    for path, text in FILES.items():
        assert not (folder / path).exists(), f"{path} is there already"
        (folder / path).write_text(text)
    return folder


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


def test_the_three_parts_train_go_on_and_are_planned(project: Path) -> None:
    ended = run(project, "-c", CODE)
    assert ended.returncode == 0, ended.stderr
    assert "has no counterpart in transformers" in ended.stderr
    assert re.search(r"one of optimizer=[\w, ]*\bsignum\b", ended.stderr), "advised by its facts"
    plan = json.loads(ended.stdout.splitlines()[-1])
    num_parameters, memory = 2 * 512 * 64, plan["memory"]["per_device_bytes"]
    assert plan["parameters"]["total"] == num_parameters
    assert [memory[kind] for kind in ("weights", "optimizer")] == [4 * num_parameters] * 2
    points = [json.loads(line) for line in (project / "runs/toy/metrics.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points if "data/epochs" in point["metrics"]] == [1, 2, 3, 4, 5]
    losses = list(tiny.losses(project / "runs/toy").values())
    assert losses[0] == pytest.approx(math.log(512), abs=0.1)
    assert losses[0] > losses[2] > losses[4]
    config = (project / "runs/toy/config.yaml").read_text()
    for target in ("models.bigram.Bigram", "optim.signum.signum", "callbacks.epochs.Epochs"):
        assert target in config


def test_a_relative_of_llama_is_an_option_and_a_row_of_under_forty_lines() -> None:
    row, option = re.findall(r"^```(?:python|yaml)\n(\"qwen2\": .*?|# Qwen .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(row.splitlines()) + len(option.splitlines()) < 40
    assert option == (tiny.PROJECT / "conf/model/qwen_2_5_0_5b.yaml").read_text()
    assert " ".join(row.split()) in " ".join((tiny.PROJECT / "src/lmtrain/interop/hf_families.py").read_text().split())
    named = re.compile(r"[\"']qwen", re.IGNORECASE)
    sources = (tiny.PROJECT / "src").rglob("*.py")
    naming = {path.name for path in sources if named.search(path.read_text())}
    assert naming <= {"hf_families.py", "hf_experts.py", "gguf_file.py", "gguf_tokenizer.py"}


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
