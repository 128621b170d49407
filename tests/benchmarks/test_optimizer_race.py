"""`experiment=optimizer_race` runs every optimizer on equal terms, and one command makes its table and plot."""

import sys

import pytest
import yaml

from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import for_each_config
from lmtrain.run.compose.paths import conf_folder

pytestmark = pytest.mark.benchmarks

SWEEP = yaml.safe_load((conf_folder() / "experiment/optimizer_race.yaml").read_text())["hydra"]["sweeper"]["params"]
OPTIONS = SWEEP["optimizer"].strip().split(",")


def test_every_optimizer_races_with_three_seeds():
    folder = conf_folder() / "optimizer"
    targets = {path.stem: target_of(path) for path in folder.glob("*.yaml")}
    raced = {targets[option] or target_of(folder / "adamw.yaml") for option in OPTIONS}
    assert raced == set(targets.values()) - {None, "???"}  # one extends another, or is of the run to train on from
    assert SWEEP["seed"] == "1,2,3"


def target_of(path):
    """Return what an option builds, or None where it extends another."""
    text = yaml.safe_load(path.read_text())
    return text.get("optimizer", text).get("_target_")


def test_every_trial_has_the_same_model_data_precision_and_budget(monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    arguments = parse_arguments(["-m", "experiment=optimizer_race", "optimizer=adamw,schedule_free", "seed=1"])
    found = []
    for_each_config(lambda config, _: found.append(config), arguments, config_name="train")
    shared = ("model", "tokenizer", "source", "batch", "budget", "precision", "gradient_clip_norm", "callbacks")
    first, other = ({key: config[key] for key in shared} for config in found)
    assert first == other
    assert first["budget"]["flops"] == 5e11
