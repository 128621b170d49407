"""A run's model with its adapter, and the strategy that spreads it."""

import json

import pytest
import torch

from lmtrain.adapters.low_rank import adapters_of, is_of_adapter
from lmtrain.cli.commands.export import export
from lmtrain.cli.commands.generate import generate
from lmtrain.cli.commands.import_hf import import_model
from lmtrain.run.builders.model import planned_model
from tests import tiny
from tests.configs import config_of

ADAPTED = ["init_from=runs/base", "adapter=lora", "adapter.rank=4", "schedule=constant", "optimizer.lr=0.01"]


def test_the_planned_model_is_the_trained_one() -> None:
    model = planned_model(config_of("adapter=lora", "adapter.rank=2"))
    assert all(weight.is_meta for weight in model.parameters())
    assert all(weight.requires_grad == is_of_adapter(name) for name, weight in model.named_parameters())
    assert not [*adapters_of(planned_model(config_of()))]


def train(folder, *words, num_ranks=1) -> str:
    ended = tiny.train(folder, *words, num_ranks=num_ranks)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module", name="folder")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    train(folder, "run.name=base", "budget.steps=2", "optimizer.lr=0.02")
    train(folder, *ADAPTED, "run.name=whole", "budget.steps=4")
    train(folder, *ADAPTED, "run.name=parts", "budget.steps=2")
    assert "continuing from step 2" in train(folder, *ADAPTED, "run.name=parts", "budget.steps=4")
    return folder


def written(path, capsys, *words) -> str:
    capsys.readouterr()
    assert (
        generate([str(path), "--prompt", "ab", "--temperature", "0", "--num-new-tokens", "12", "--json", *words]) == 0
    )
    return json.loads(capsys.readouterr().out)["text"]


def test_a_run_goes_on_and_its_adapter_leaves_alone_or_merged(folder, capsys) -> None:
    runs = folder / "runs"
    assert export(["hf", str(runs / "base"), str(folder / "hf_base")]) == 0
    assert export(["peft", str(runs / "whole"), str(folder / "peft"), "--base-model", str(folder / "hf_base")]) == 0
    assert export(["hf", str(runs / "whole"), str(folder / "hf")]) == 0
    assert import_model(["peft", str(folder / "peft"), str(folder / "in"), "--base", str(runs / "base")]) == 0
    texts = {written(path, capsys) for path in (runs / "whole", folder / "hf", folder / "in")}
    assert len(texts) == 1
    trained, base = (tiny_weights(runs / name) for name in ("whole", "base"))
    assert all(torch.equal(trained[name], weight) for name, weight in base.items())
    assert {name for name in trained if name not in base} == {name for name in trained if is_of_adapter(name)}
    assert tiny.losses(runs / "parts") == tiny.losses(runs / "whole")
    assert any(weight.abs().sum() > 0 for name, weight in trained.items() if ".ups." in name)


def tiny_weights(run):
    (newest,) = sorted((run / "checkpoints").glob("step_*"))[-1:]
    state = torch.load(newest / "state.pt", weights_only=True)["state_dict"]
    return {name: tensor for name, tensor in state.items() if name.startswith("language_model.")}


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_train_the_same_adapters_and_one_goes_on(folder, strategy: str) -> None:
    name = f"run.name={strategy}"
    train(folder, *ADAPTED, name, "budget.steps=2", f"strategy={strategy}", "trainer.devices=2", num_ranks=2)
    train(folder, *ADAPTED, name, "budget.steps=4")
    expected = tiny.losses(folder / "runs" / "whole")
    assert tiny.losses(folder / "runs" / strategy) == pytest.approx(expected, rel=2e-6)  # fp32, other orders of sums
