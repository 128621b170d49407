"""Every YAML file composes, binds to its targets' signatures, and is short."""

from itertools import groupby, zip_longest
from pathlib import Path

import pytest

from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.option_files import describe
from lmtrain.run.compose.paths import conf_folder, group_folders
from lmtrain.run.run_config import read_config
from tests.configs import option_files

FILES = option_files()
IMPORTED = [
    "model._target_=lmtrain.models.gpt2.GPT2",
    *("+model.width=8", "+model.num_layers=1", "+model.num_heads=1", "+model.vocab_size=300"),
    "+model.max_context_tokens=256",
]
GIVEN = {
    "callbacks/push": ["callbacks.push.repository=me/model"],
    "base/imported": IMPORTED,
    "model/imported": IMPORTED,
    "optimizer/inherited": ["optimizer._target_=lmtrain.optim.torch_optimizers.sgd", "+optimizer.lr=1"],
    "scaling/depth_dial": ["model=nano"],
    "source/preference_pairs": ["source.paths=[README.md]"],
    **{f"task/{name}": ["source.paths=[README.md]"] for name in ("dpo", "ipo", "orpo", "simpo")},
    "source/files": ["source.paths=[README.md]"],
    "source/hf_dataset": ["source.name=x"],
    "data/shards": ["data.folder.path=x"],
    "data/external": ["data.folder.format=nanogpt", "data.folder.train=[x]"],
    "data/rows": ["data.folder.rows=[[1,2]]"],
    "engine/slurm": ["engine.partition=x"],
    "tokenizer/folder": ["tokenizer.path=x", "tokenizer.vocab_size=300"],
    "tokenizer/huggingface": ["tokenizer.name=x", "tokenizer.vocab_size=300"],
    "callbacks": [],
}
CHOOSE_FOR_OTHERS = {"adapter", "base", "debug", "experiment", "hparams_search", "scaling", "task"}


def overrides_for(file: Path) -> list[str]:
    """Choose a file's option, with a value for what it leaves open."""
    group, option = file.parent.name, file.stem
    choice = f"callbacks=[{option}]" if group == "callbacks" else f"{group}={option}"
    if group in ("experiment", "debug"):
        choice = f"+{group}={option}" if group not in {"experiment", "debug"} else choice
    if file.stem == "none" and group == "budget":
        return [choice, "budget.steps=1"]
    return [choice, *GIVEN.get(f"{group}/{option}", [])]


def rounds() -> list[list[Path]]:
    """Deal the files out so that none meets another of its group; files that choose for other groups stay alone."""
    alone = [file for file in FILES if file.parent.name in CHOOSE_FOR_OTHERS]
    groups = groupby((file for file in FILES if file not in alone), key=lambda file: file.parent.name)
    dealt = zip_longest(*[list(files) for _, files in groups])
    return [[file] for file in alone] + [[file for file in files if file is not None] for files in dealt]


@pytest.mark.parametrize("files", rounds())
def test_every_option_composes_and_binds(files: list[Path]) -> None:
    read_config(compose_config([word for file in files for word in overrides_for(file)])).checked()


def test_every_option_begins_with_a_line_for_the_help_page() -> None:
    assert [file for file in FILES if len(describe(file)) <= 10] == []


def test_experiments_pick_options_and_shared_scalars_only() -> None:
    groups = {path.name for path in group_folders()} - {"budget"}
    for file in (conf_folder() / "experiment").glob("*.yaml"):
        keys = {line.split(":")[0] for line in file.read_text().splitlines() if line and line[0] not in " #-"}
        assert not keys & groups, f"{file} tunes a field of a group; put it in an option file"
