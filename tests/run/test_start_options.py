"""The options that init_from brings, from an imported folder and from a run, which may be anybody's."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import compose_config, configs_of
from lmtrain.run.compose.start_options import imported_options, inherited_options, value_words
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

FILE = Path("facts.json")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (None, "facts.json has no settings of model"),
        ({"a": "${oc.env:HOME}"}, "model.a="),
        ({"a": {"b": ["x y"]}}, "model.a.b='x y' is not a plain value"),
        ({"a.b": 1}, "invalid setting 'a.b'"),
        ({"a=1,b": 1}, "invalid setting"),
    ],
)
def test_what_is_no_plain_value_is_refused(settings: Any, said: str) -> None:
    with pytest.raises(DataError, match=r"facts\.json") as refused:
        value_words("model", settings, source=FILE)
    assert said in str(refused.value)


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


def test_its_tokenizer_comes_along_unless_one_is_typed(tmp_path: Path) -> None:
    folder = imported(tmp_path / "a 'b")
    ByteLevelTokenizer(vocab_size=300).save(folder / "tokenizer")
    words = imported_options({"init_from": str(folder)})
    quoted = str(folder / "tokenizer").replace("'", "\\'")
    assert words[-3:] == ["tokenizer=folder", f"tokenizer.path='{quoted}'", "tokenizer.vocab_size=300"]
    assert not any("tokenizer" in word for word in imported_options({"init_from": str(folder), "tokenizer": "bpe"}))


def test_a_run_named_with_a_budget_alone_goes_on_with_its_own_words(tmp_path: Path) -> None:
    attempt = tmp_path / "notes/attempts/1"
    attempt.mkdir(parents=True)
    (tmp_path / "notes/run.json").write_text(json.dumps({"accepted_attempt": 1}))
    own = ["optimizer=adamw", "optimizer.lr=1e-3", "budget.tokens=1M", "schedule=linear", "seed=3", "run.name=notes"]
    (attempt / "job.json").write_text(json.dumps({"overrides": own}))
    root = [f"run.root={tmp_path}", "run.name=notes"]
    kept = ["optimizer=adamw", "optimizer.lr=1e-3", "schedule=linear", "seed=3"]
    assert parse_arguments([*root, "budget.steps=9"]).continued == kept
    assert parse_arguments([*root, "optimizer=muon"]).continued == [], "a whole command of its own"
    assert parse_arguments([*root, "resume=never"]).continued == []
    (attempt / "job.json").write_text(json.dumps({"overrides": ["run.cache=elsewhere", "logger.address=1.2.3.4"]}))
    assert parse_arguments(root).continued == ["logger.address=1.2.3.4"], "refused once composed"


def test_a_strangers_run_sets_no_setting_that_a_person_types(tmp_path: Path) -> None:
    attempt = tmp_path / "notes/attempts/1"
    attempt.mkdir(parents=True)
    (tmp_path / "notes/run.json").write_text(json.dumps({"accepted_attempt": 1}))
    (attempt / "job.json").write_text(json.dumps({"overrides": ["engine=slurm", "engine.setup=touch x"]}))
    with pytest.raises(ConfigurationError, match=r"engine\.setup=touch x cannot be set by"):
        configs_of(parse_arguments([f"run.root={tmp_path}", "run.name=notes"]), config_name="train")


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
    arguments = parse_arguments(["-m", *fixed, f"{one},{other.partition('=')[2]}"])
    found = configs_of(arguments, config_name="train")
    alone = [parse_arguments([*fixed, word]) for word in (one, other)]
    assert [config for config, _ in found] == [compose_config(each.words) for each in alone]
    assert [its.typed for _, its in found] == [[*fixed, word] for word in (one, other)]
    assert found[0][0]["optimizer"] != found[1][0]["optimizer"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ('{"config": 3}', "holds no config"),
        ('{"config": {"batch": {}, "optimizer": {"lr": "${oc.env:HOME}"}}}', "is not a plain value"),
    ],
)
def test_a_damaged_or_hostile_run_is_refused(run: Path, content: str, said: str) -> None:
    (run / "attempts" / "1" / "job.json").write_text(content)
    with pytest.raises(DataError, match=said):
        inherited_options({"init_from": str(run)})
