import json
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import compose_config, for_each_config
from lmtrain.run.compose.inherited_options import inherited_options
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

WORDS = ["model=gpt2_124m", "model.width=96", "optimizer=adamw", "optimizer.lr=3e-3", "batch.context_tokens=64"]


@pytest.fixture(name="run")
def made_run(tmp_path: Path) -> Path:
    attempt = tmp_path / "base" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "job.json").write_text(json.dumps({"config": compose_config(WORDS)}))
    ByteLevelTokenizer(vocab_size=300).save(tmp_path / "base" / "tokenizer")
    return tmp_path / "base"


def composed(run: Path, *words: str) -> dict[str, Any]:
    arguments = parse_arguments([f"init_from={run}", *words])
    return compose_config(arguments.words)


def test_a_run_brings_its_model_tokenizer_optimizer_and_batch(run: Path) -> None:
    config, base = composed(run, "task=sft"), compose_config(WORDS)
    assert config["optimizer"] == base["optimizer"]
    assert config["model"] == base["model"]
    assert config["batch"]["context_tokens"] == 64
    assert config["tokenizer"]["path"] == str(run / "tokenizer")
    best_fit = {"_target_": "lmtrain.data.packing.BestFit", "document_mask": True}
    assert config["packing"] == best_fit | {"of_conversations": True}
    assert config["schedule"]["peak_fraction"] == 1
    assert config["init_from"] == str(run)


def test_a_checkpoint_brings_those_of_its_run(run: Path) -> None:
    (run / "checkpoints" / "step_00000002").mkdir(parents=True)
    found = inherited_options({"init_from": str(run / "checkpoints" / "step_00000002")})
    assert found == inherited_options({"init_from": str(run)}) != []


def test_what_is_typed_wins(run: Path) -> None:
    config = composed(run, "optimizer=muon", "batch.context_tokens=32", "model.width=192", "tokenizer=byte_level")
    assert config["optimizer"]["_target_"] == "lmtrain.optim.muon.muon"
    assert (config["batch"]["context_tokens"], config["model"]["width"]) == (32, 192)
    assert config["tokenizer"]["_target_"].endswith("ByteLevelSpec")
    assert composed(run, "optimizer.lr=1")["optimizer"]["lr"] == 1
    assert inherited_options({"init_from": str(run), "experiment": "nano_d12"}) == []


@pytest.mark.parametrize("swept", [["adapter=lora", "adapter=none"], ["init_from={run}", "init_from={run}-muon"]])
def test_a_trial_of_a_sweep_is_composed_as_if_typed_alone(run: Path, swept: list[str]) -> None:
    attempt = Path(f"{run}-muon") / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "job.json").write_text(json.dumps({"config": compose_config(["model=nano"])}))
    one, other = (word.format(run=run) for word in swept)
    fixed = [] if "init_from" in one else [f"init_from={run}"]
    found: list[tuple[dict[str, Any], list[str]]] = []
    arguments = parse_arguments(["-m", *fixed, f"{one},{other.partition('=')[2]}"])
    for_each_config(lambda config, its: found.append((config, its.brought)), arguments, config_name="train")
    alone = [parse_arguments([*fixed, word]) for word in (one, other)]
    assert [config for config, _ in found] == [compose_config(each.words) for each in alone]
    assert [brought for _, brought in found] == [each.imported for each in alone]
    assert found[0][0]["optimizer"] != found[1][0]["optimizer"]


def test_no_run_brings_nothing(tmp_path: Path) -> None:
    assert inherited_options({}) == inherited_options({"init_from": str(tmp_path)}) == []
    with pytest.raises(ConfigurationError, match=r"optimizer=inherited needs the run it is of; add init_from=RUN\."):
        inherited_options({"optimizer": "inherited"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ('{"config": 3}', "holds no config"),
        ('{"config": {"batch": {}, "optimizer": {"lr": "${oc.env:HOME}"}}}', "is no setting"),
    ],
)
def test_a_damaged_or_hostile_run_is_refused(run: Path, content: str, said: str) -> None:
    (run / "attempts" / "1" / "job.json").write_text(content)
    with pytest.raises(DataError, match=said):
        inherited_options({"init_from": str(run)})
