import json
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.imported_options import imported_options
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

LLAMA = {"_target_": "lmtrain.models.llama.Llama", "width": 32, "rope_scaling": {"factor": 8.0}, "windows": [4, None]}


def imported(folder: Path, settings: Any = LLAMA) -> Path:
    (folder / "weights").mkdir(parents=True)
    (folder / "import.json").write_text(json.dumps({"settings": settings}))
    return folder


def test_an_imported_folder_brings_its_settings_as_values(tmp_path: Path) -> None:
    arguments = parse_arguments([f"init_from={imported(tmp_path / 'in')}", "seed=3"])
    assert arguments.words == [
        "base=imported",
        "++model._target_=lmtrain.models.llama.Llama",
        "++model.width=32",
        "++model.rope_scaling.factor=8.0",
        "++model.windows=[4,null]",
        f"init_from={tmp_path / 'in'}",
        "seed=3",
    ]
    assert arguments.flags == []


def test_its_tokenizer_comes_along_unless_one_is_typed(tmp_path: Path) -> None:
    folder = imported(tmp_path / "a 'b")
    ByteLevelTokenizer(vocab_size=300).save(folder / "tokenizer")
    words = imported_options({"init_from": str(folder)})
    quoted = str(folder / "tokenizer").replace("'", "\\'")
    assert words[-3:] == ["tokenizer=folder", f"tokenizer.path='{quoted}'", "tokenizer.vocab_size=300"]
    assert not any("tokenizer" in word for word in imported_options({"init_from": str(folder), "tokenizer": "bpe"}))


def test_a_model_that_is_typed_wins_and_may_be_the_imported_one(tmp_path: Path) -> None:
    given = {"init_from": str(imported(tmp_path / "in"))}
    assert imported_options({**given, "model": "gpt2_124m"}) == []
    assert imported_options({**given, "model": "imported"})[0] == "++model._target_=lmtrain.models.llama.Llama"


def test_a_search_that_chooses_the_model_brings_none_of_the_folder(tmp_path: Path) -> None:
    init_from = f"init_from={imported(tmp_path / 'in')}"
    assert parse_arguments([init_from, "hparams_search=depth"]).imported == []


BASES = {"imported": ("adamw", 2e-5, 0.1, 1.0), "run": ("muon", 0.01, 0.0, None)}
LORA, PREFERENCE = ("adamw", 1e-3, 0.0), ("adamw", 1e-5, 0.0)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("words", "optimizer", "schedule", "budget"),
    [
        (["task=sft"], None, "linear", "epochs"),
        (["adapter=lora"], LORA, "trapezoid", "tokens"),
        (["adapter=lora", "task=sft"], LORA, "linear", "epochs"),
        (["task=dpo", "source.paths=[a]"], PREFERENCE, "linear", "epochs"),
        (["adapter=lora", "task=grpo"], PREFERENCE, "constant", "steps"),
        (["adapter=lora", "optimizer=lion", "optimizer.lr=1"], ("lion", 1, 1.0), "trapezoid", "tokens"),
        (["adapter=small", "--config-dir", "mine"], LORA, "trapezoid", "tokens"),
    ],
)
def test_an_adapter_and_a_task_choose_over_the_base_and_typed_words_over_them(
    base: str, words: list[str], optimizer: Any, schedule: str, budget: str, made_bases: Path
) -> None:
    arguments = parse_arguments([f"init_from={made_bases / base}", *words])
    search = [f"hydra.searchpath=['file://{made_bases / 'mine'}']"] if arguments.config_dir else []
    config = compose_config([*search, *arguments.words])
    *own, clip = BASES[base]
    found = config["optimizer"]
    assert (found["_target_"].rpartition(".")[2], found["lr"], found["weight_decay"]) == (optimizer or tuple(own))
    assert config["schedule"]["_target_"].rpartition(".")[2] == schedule
    assert config["budget"][budget] is not None
    assert (config["gradient_clip_norm"], config["model"]["width"]) == (clip, 32)


@pytest.fixture(name="made_bases")
def imported_folder_run_and_own_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    imported(tmp_path / "imported")
    run = compose_config(["model=llama_micro", "model.width=32", "optimizer.lr=0.01"])
    (tmp_path / "run" / "attempts" / "1").mkdir(parents=True)
    (tmp_path / "run" / "attempts" / "1" / "job.json").write_text(json.dumps({"config": run}))
    (tmp_path / "mine" / "adapter").mkdir(parents=True)
    (tmp_path / "mine" / "adapter" / "small.yaml").write_text("# @package _global_\ndefaults: [lora]\n")
    return tmp_path


def test_a_folder_without_facts_brings_nothing(tmp_path: Path) -> None:
    assert imported_options({"init_from": str(tmp_path)}) == []
    assert imported_options({}) == []


def test_the_imported_model_without_its_folder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"model=imported needs .* init_from=FOLDER"):
        imported_options({"model": "imported"})


@pytest.mark.parametrize(
    "settings",
    [
        None,
        {"width": "${oc.env:HOME}"},
        {"width": "1 hydra.mode=MULTIRUN"},
        {"a=b,hydra.callbacks": 1},
        {"part": {"x": ["a b"]}},
    ],
)
def test_settings_that_are_no_plain_values_are_refused(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(DataError, match="import"):
        imported_options({"init_from": str(imported(tmp_path / "in", settings))})
