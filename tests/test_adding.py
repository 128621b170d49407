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

from lmtrain.accounting.quantities import format_quantity
from tests import tiny

PAGE = (tiny.PROJECT / "docs" / "adding.md").read_text()
FENCED_FILE = re.compile(r"^`([^`\n]+)`\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # headed by its path
FILES = dict(FENCED_FILE.findall(PAGE))
COPIED = ("conf", "src", "data_pipelines", "tests", "train.py", "pyproject.toml")
NAMES = "bigram or signum or epochs or pairs or bf16_light"
PARTS = ["model=bigram", "optimizer=signum", "callbacks=[default,epochs]"]
OPTIONS = ["optimizer=signum", "strategy=pairs", "precision=bf16_light"]
PAIR = "trainer.devices=2"
SMALL_GPT = [
    *("model=gpt2_124m", "model.width=64", "model.num_layers=2", "model.num_heads=2"),
    *("model.vocab_size=512", "model.max_context_tokens=32"),
]
RUN = [*tiny.DATA, *tiny.BATCH, *tiny.QUIET, "run.log_every_steps=1"]

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


def test_a_part_is_two_files_and_its_test() -> None:
    kinds = [("tests" if path.startswith("tests/") else Path(path).suffix) for path in FILES]
    assert sorted(kinds) == [".py"] * 5 + [".yaml"] * 5 + ["tests"] * 5


def test_the_three_parts_train_go_on_and_are_planned_and_no_old_file_changes(project: Path) -> None:
    """All verbs in one process: a new model is trained, resumed, planned, examined, and refused by transformers."""
    before = contents(project)
    words = [*RUN, *PARTS, "run.name=toy", "batch.micro_batch_sequences=auto"]
    code = f"""
from lmtrain.accounting.training_plan.fit import memory_of
from lmtrain.cli.main import serve
from lmtrain.run.planning import machine_limits as auto_batch
from lmtrain.cli.commands import doctor
from tests.configs import config_of

words = {words}
assert serve("train", [*words, "budget.steps=3"], program="train.py") == 0
assert serve("train", [*words, "budget.steps=5"], program="train.py") == 0
config = config_of(*words)
print(*(finding.found for finding in doctor.examine(config)), sep="\\n")
whole = auto_batch.batch_of(config)
needed = memory_of(auto_batch.setting_here(config), whole).total
auto_batch.held_device = lambda _: auto_batch.HeldDevice(None, needed - 1)
print(auto_batch.out_of_memory(config, whole))
assert serve("export", ["hf", "runs/toy", "toy"], program="lmtrain export") == 2
for refused in (["strategy=single", "trainer.devices=2"], ["optimizer=adafactor", "strategy=fsdp"]):
    assert serve("plan", [*words, *refused], program="lmtrain plan") == 2
print(doctor.fitting_precisions(frozenset()))
assert serve("plan", ["--json", *words, "budget.steps=5"], program="lmtrain plan") == 0
"""
    ended = run(project, "-c", code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("batch.micro_batch_sequences=auto: 8 of 8 sequences") == 3
    assert "out of memory at batch.micro_batch_sequences=8: the plan says 0.0 GB" in ended.stdout
    assert "fits with batch.micro_batch_sequences=4" in ended.stdout
    assert "has no counterpart in transformers" in ended.stderr
    for group, said in (("strategy", ended.stderr), ("optimizer", ended.stderr), ("precision", ended.stdout)):
        (option,) = (Path(path).stem for path in FILES if path.startswith(f"conf/{group}/"))
        assert re.search(rf"one of {group}=[\w, ]*\b{option}\b", said), f"{group}={option} is not advised"
    plan = json.loads(ended.stdout.splitlines()[-1])
    num_parameters, memory = 2 * 512 * 64, plan["memory"]["per_device_bytes"]
    assert plan["parameters"]["total"] == num_parameters
    assert [memory[kind] for kind in ("weights", "optimizer")] == [4 * num_parameters] * 2
    assert (memory["gradients"], memory["workspace"] > 4 * num_parameters) == (0, True), "the end of the forward pass"
    assert f"{format_quantity(plan['checkpoints']['kept_bytes'], 'bytes')} planned for checkpoints" in ended.stdout
    points = [json.loads(line) for line in (project / "runs/toy/metrics.jsonl").read_text().splitlines()]
    epochs = [point["step"] for point in points if "data/epochs" in point["metrics"]]
    assert epochs == [1, 2, 3, 4, 5]
    losses = list(tiny.losses(project / "runs/toy").values())
    assert losses[0] == pytest.approx(math.log(512), abs=0.1)
    assert losses[0] > losses[2] > losses[4]
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


def test_a_plan_counts_what_they_say_of_themselves(project: Path) -> None:
    """Llama 3 8B on two nodes of 8: half of 4 + 4 + 4 bytes a parameter, no copies, and links by kind."""
    words = [
        "model=llama_3_8b",
        "cluster=h100_8x",
        "cluster.num_nodes=2",
        "budget.tokens=1B",
        "batch.context_tokens=2048",
    ]
    # one micro-step: gradients of several are kept whole under FSDP
    words += ["batch.tokens_per_step=32768", "batch.micro_batch_sequences=auto", *OPTIONS]
    ended = run(project, "-m", "lmtrain.cli", "plan", "--json", *words)
    assert ended.returncode == 0, ended.stderr
    plan = json.loads(ended.stdout)
    num_parameters, memory = plan["parameters"]["total"], plan["memory"]["per_device_bytes"]
    kinds = ("weights", "gradients", "optimizer", "weights_copy")
    assert [memory[kind] for kind in kinds] == pytest.approx([num_parameters * 4 / 2] * 3 + [0])
    gathered = 2 * plan["batch"]["accumulation_micro_steps"] * 2 * num_parameters / 2
    reduced = 4 * num_parameters * (1 / 2 + 2 * 7 / 8 / 2)
    assert plan["communication"]["bytes_per_step"] == pytest.approx(gathered + reduced)
    assert plan["checkpoints"]["checkpoint_bytes"] == num_parameters * (4 + 4)
    assert plan["ok"]
    assert memory["total"] <= plan["memory"]["device_bytes"], "auto fits"


def test_the_doctor_and_the_advice_out_of_memory_know_them(project: Path) -> None:
    ended = run(project, "-m", "lmtrain.cli", "doctor", *RUN[:-1], *SMALL_GPT, *OPTIONS, PAIR)
    assert "precision=bf16_light" in ended.stdout, ended.stderr
    assert "planned for checkpoints" in ended.stdout
    code = f"""
from lmtrain.accounting.batches import plan_batches
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config
from lmtrain.run.planning import machine_limits as auto_batch
config = read_config(compose_config({[*RUN, *SMALL_GPT, *OPTIONS, PAIR]})).checked()
batch = plan_batches(config.batch, num_ranks=2)
auto_batch.held_device = lambda _: auto_batch.HeldDevice(None, 2_500_000)
print(auto_batch.out_of_memory(config, batch))
"""
    ended = run(project, "-c", code)
    assert "out of memory at batch.micro_batch_sequences=4: the plan says 0.0 GB" in ended.stdout, ended.stderr
    assert "fits with batch.micro_batch_sequences=" in ended.stdout


@pytest.mark.distributed
def test_they_train_on_two_ranks_go_on_on_one_and_are_exported(project: Path) -> None:
    together = [*RUN, *SMALL_GPT, "optimizer=signum", "precision=bf16_light"]
    together += ["batch.micro_batch_sequences=auto", "schedule=constant"]
    runs = [
        ["run.name=straight", "budget.steps=5"],
        ["run.name=nodes", "budget.steps=3", "strategy=pairs", PAIR],
        ["run.name=nodes", "budget.steps=5", "strategy=single"],
    ]
    code = f"""
from lmtrain.cli.main import serve
for words in {runs}:
    assert serve("train", [*{together}, *words], program="train.py") == 0
assert serve("export", ["hf", "runs/nodes", "out"], program="lmtrain export") == 0
"""
    ended = run(project, "-c", code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("batch.micro_batch_sequences=auto: ") == 3
    straight, nodes = (tiny.losses(project / "runs" / name) for name in ("straight", "nodes"))
    assert nodes.keys() == straight.keys() == set(range(1, 6))
    assert nodes == pytest.approx(straight, rel=1e-3)  # of bf16, whose roundings turn signs of small averages
    assert (project / "out" / "model.safetensors").is_file()
