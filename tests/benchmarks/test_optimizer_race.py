"""`experiment=optimizer_race` runs every optimizer on equal terms, and one command makes its table and plot."""

import sys

import pytest
import yaml

from benchmarks.questions import optimizer_race
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import for_each_config
from lmtrain.run.compose.paths import conf_folder
from tests.report.compared_folder import write

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


def test_the_table_and_the_plot_come_from_the_runs(tmp_path):
    rows = [("adamw_two_rates", 1, 2.0), ("adamw_two_rates", 2, 2.2), ("muon_plain", 1, 1.0), ("muon_plain", 2, 1.1)]
    for optimizer, seed, last in rows:
        words = [f"optimizer={optimizer}", f"seed={seed}"]
        write(tmp_path / f"race/{optimizer}{seed}", lr=optimizer, seed=seed, words=words, values=(8.0, 4.0, last))
    words = ["optimizer=adamw_two_rates", "precision=x"]
    write(tmp_path / "precision/a", lr="adamw_two_rates", p=16, words=words)
    less = ["optimizer=muon_plain", "budget.flops=1"]
    write(tmp_path / "three_quarters/a", words=less, values=(8.0, 2.1, 1.5))
    page = optimizer_race.report(tmp_path, tmp_path / "result")
    assert "| `optimizer=muon_plain` | 2 | 1.0500 | 0.0707 | -1.0500 ± " in page
    assert "| `optimizer=muon_plain budget.flops=1` | 1 | 1.5000 |  | -0.5000 | 0 K, 50% |" in page
    assert "| between 0 K and 0 K |" in page, "it was reached between validations after 100 and 200 tokens"
    assert "![curves of every optimizer and precision](result.svg)" in page
    assert (tmp_path / "result.svg").read_text().count("optimizer=adamw_two_rates") == 2


def test_the_harness_types_the_experiment_for_every_part():
    words = optimizer_race.sweeps(seeds="1,2", other_seeds="7")
    assert words["race"][0] == ["optimizer=adamw_two_rates,muon_plain", "seed=1,2"]
    assert words.keys() == {"race", "precision", "three_quarters"}
    named = {name for line in words["race"] for word in line[:1] for name in word.partition("=")[2].split(",")}
    assert named == set(OPTIONS)
