from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmtrain.run.stored_runs.going_on import changed_settings, going_on_line
from lmtrain.run.stored_runs.job import Job
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts
from tests.configs import config_with

CONFIG: dict[str, Any] = {
    "seed": 1,
    "optimizer": {"lr": 0.025, "betas": [0.9, 0.95]},
    "budget": {"tokens": 60_000, "steps": None},
    "run": {"name": "a"},
}


def job(root: Path, config: dict[str, Any]) -> Job:
    return Job(config=config_with(values=config), overrides=[], name="a", root=str(root))


def attempt(root: Path, number: int, config: dict[str, Any]) -> None:
    folder = root / "a" / "attempts" / str(number)
    folder.mkdir(parents=True)
    job(root, config).save(folder / "job.json")


@pytest.mark.faults
def test_a_run_says_from_which_step_it_goes_on_and_what_changed(tmp_path: Path) -> None:
    changed = {**CONFIG, "optimizer": {**CONFIG["optimizer"], "lr": 0.01}, "budget": {"tokens": 160_000, "steps": None}}
    attempt(tmp_path, 1, CONFIG)
    attempt(tmp_path, 2, changed)
    checkpoint = CheckpointFacts(path=tmp_path, step=1234, tokens=2_500_000, identity={}, metrics={})
    assert going_on_line(job(tmp_path, changed), checkpoint) == (
        "going on from step 1,234 (2.5M tokens); changed: optimizer.lr 0.025 -> 0.01, budget.tokens 60.0K -> 160.0K"
    )


@pytest.mark.faults
def test_nothing_changed_is_not_told(tmp_path: Path) -> None:
    attempt(tmp_path, 1, CONFIG)
    checkpoint = CheckpointFacts(path=tmp_path, step=5, tokens=10, identity={}, metrics={})
    assert going_on_line(job(tmp_path, CONFIG), checkpoint) == "going on from step 5 (10 tokens)"
    attempt(tmp_path, 2, {**CONFIG, "run": {"name": "b"}})
    assert going_on_line(job(tmp_path, CONFIG), checkpoint) == "going on from step 5 (10 tokens)"


def test_settings_that_come_or_go_are_null_on_the_other_side() -> None:
    assert changed_settings({"a": {"x": 1}}, {"a": {"y": "word"}}) == ["a.y null -> word", "a.x 1 -> null"]
    budgets = ({"budget": {"hours": hours / 3600}} for hours in (15.0, 5400.0))
    assert changed_settings(*budgets) == ["budget.hours 15s -> 1.5"]


def test_changes_are_told_against_the_attempt_that_was_accepted(tmp_path: Path) -> None:
    attempt(tmp_path, 1, CONFIG)
    attempt(tmp_path, 2, {**CONFIG, "seed": 7})  # killed before it was accepted
    attempt(tmp_path, 3, {**CONFIG, "seed": 8})
    (tmp_path / "a" / "run.json").write_text('{"accepted_attempt": "1"}')
    checkpoint = CheckpointFacts(path=tmp_path, step=1, tokens=1, identity={}, metrics={})
    assert going_on_line(job(tmp_path, {**CONFIG, "seed": 8}), checkpoint).endswith("changed: seed 1 -> 8")


def test_changes_are_told_against_the_attempt_that_wrote_the_checkpoint_of_another_run_too(tmp_path: Path) -> None:
    attempt(tmp_path / "there", 1, CONFIG)
    attempt(tmp_path / "there", 2, {**CONFIG, "seed": 7})
    attempt(tmp_path, 1, CONFIG)
    path = tmp_path / "there/a/checkpoints/step_00000001"
    checkpoint = CheckpointFacts(path=path, step=1, tokens=1, identity={}, metrics={}, attempt=2)
    assert going_on_line(job(tmp_path, CONFIG), checkpoint).endswith("changed: seed 7 -> 1")
    assert going_on_line(job(tmp_path, CONFIG), replace(checkpoint, attempt=1)) == "going on from step 1 (1 tokens)"


def test_a_tuple_is_no_change_of_the_list_in_its_file() -> None:
    assert changed_settings({"batch": {"left_out": []}}, {"batch": {"left_out": ()}}) == []
    assert changed_settings({"batch": {"left_out": []}}, {"batch": {"left_out": (3,)}}) == ["batch.left_out [] -> [3]"]
