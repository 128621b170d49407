"""`import lmtrain`: the Python functions do what the commands do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lmtrain
from lmtrain.errors import ConfigurationError, DataError
from tests import tiny

SMALL = [*tiny.TINY, "budget.steps=3"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_import_is_light() -> None:
    script = "import sys, lmtrain; lmtrain.__version__; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "lightning", "hydra", "omegaconf", "pydantic"}.isdisjoint(loaded)
    assert (Path(lmtrain.__file__).parent / "py.typed").exists()


def test_train_has_the_losses_of_the_command() -> None:
    run = lmtrain.train(*SMALL, run={"name": "python"})
    assert tiny.train(Path.cwd(), *SMALL, "run.name=typed").returncode == 0
    assert run.losses == list(tiny.losses(Path("runs/typed")).values())
    assert len(run.losses) == 3
    assert run.status == "FINISHED"
    assert run.metrics["train/loss"] == run.losses[-1]
    assert run.curve("validation/bits_per_byte")[0][0] == 0
    assert run.ledger["step"] == 3
    assert [each.name for each in lmtrain.runs()] == ["python", "typed"]
    compared = lmtrain.compare(run, "runs/typed")
    assert len(compared.choices) == 1
    with pytest.raises(ConfigurationError, match=r"^metric: must end with .*, got nope"):
        lmtrain.compare(run, metric="nope")
    text = lmtrain.load(run.folder).generate("def", num_new_tokens=4, temperature=0)
    model = run.load()
    assert text == model.generate("def", num_new_tokens=4, temperature=0)
    for wrong, pattern in [
        ({"max_new_tokens": 5}, "Did you mean 'num_new_tokens'"),
        ({"num_new_tokens": "5"}, "num_new_tokens: .*whole number"),
        ({"num_new_tokens": 2.5}, r"num_new_tokens: .*2\.5"),
        ({"temperature": "hot"}, "temperature: .*hot"),
        ({"top_k": 2.5}, "top_k: .*whole number"),
    ]:
        with pytest.raises(ConfigurationError, match=pattern):
            model.generate("def", **wrong)  # pyright: ignore[reportCallIssue]
    for no_text in (None, b"abc", "a\ud800b"):
        for read in (model.generate, model.score):
            with pytest.raises(DataError, match="must be UTF-8 text"):
                read(no_text)  # pyright: ignore[reportCallIssue]


def test_arguments_that_are_not_text_are_refused() -> None:
    for call in (lmtrain.compose, lmtrain.train, lmtrain.plan):
        for wrong in (["debug=tiny"], 3):
            with pytest.raises(ConfigurationError, match="overrides must be text"):
                call(wrong)  # pyright: ignore[reportArgumentType]


def test_train_takes_a_composed_specification() -> None:
    spec = lmtrain.compose(*SMALL, run={"name": "spec"}, seed=7)
    assert lmtrain.train(spec).losses == lmtrain.train(*SMALL, "seed=7", "run.name=again").losses
    with pytest.raises(ConfigurationError, match="not both"):
        lmtrain.train(spec, seed=8)


def test_plan_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from lmtrain.cli.main import main

    assert main(["plan", "model=llama_3_2_1b", "cluster=h100_8x", "budget.tokens=1B", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert lmtrain.plan("cluster=h100_8x", model="llama_3_2_1b", budget="1B") == printed


def test_plan_of_a_module_counts_its_parameters() -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 100))
    planned = lmtrain.plan(model=module, batch=(4, 16), optimizer=torch.optim.AdamW)
    assert planned["parameters"]["total"] == 100 * 8 + 8 * 100 + 100
    assert planned["memory"]["per_device_bytes"]["optimizer"] >= 2 * 4 * planned["parameters"]["total"]
    for wrong, pattern in [
        ({"optimizer": "adamx"}, "optimizer: .*adamw.*got adamx"),
        ({"optimizer": 5}, "optimizer: .*got 5"),
        ({"batch": (-8, 128)}, "batch: .*-8"),
        ({"batch": (8, 128, 3)}, "batch: .*3"),
        ({"budget": "1B"}, "tokens.*got budget"),
        ({"model": torch.nn.Identity()}, "model: must have parameters"),
        ({"model": 5}, "model: .*got 5"),
    ]:
        with pytest.raises(ConfigurationError, match=pattern):
            lmtrain.plan(**{"model": module, **wrong})
    with pytest.raises(ConfigurationError, match="debug=tiny"):
        lmtrain.plan("debug=tiny", model=module)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"budget": "2M"}, ["budget.tokens=2M"]),
        ({"budget": "2h"}, ["budget.hours=2h"]),
        ({"budget": "$5"}, ["budget.usd=5"]),
        ({"budget": "steps"}, ["budget=steps"]),
        ({"optimizer": {"lr": 1e-3, "betas": (0.9, 0.95)}}, ["optimizer.lr=0.001", "optimizer.betas=[0.9,0.95]"]),
        ({"init_from": None, "deterministic": True}, ["init_from=null", "deterministic=true"]),
        ({"source": {"paths": ["my notes"]}}, ["source.paths=['my notes']"]),
    ],
)
def test_keyword_arguments_are_overrides(groups: dict[str, object], words: list[str]) -> None:
    from lmtrain.api import _words

    assert _words(groups) == words
