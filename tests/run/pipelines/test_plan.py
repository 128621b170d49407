from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.pipelines.plan import plan_pipeline, require_stages
from lmtrain.run.pipelines.stages import read_pipeline

ON_A_GPU = "each.cluster=h100_8x"


def evaluation(words):
    if "--maed" in words:
        raise ConfigurationError("--maed: there is no such flag.")


READERS = {"evaluate": evaluation, "export": lambda words: None}


def planned(tmp_path, *words):
    return {row["name"]: row for row in plan_pipeline(read_pipeline([f"run.root={tmp_path}", *words]))}


def test_every_training_has_its_figures_and_nothing_is_written(tmp_path):
    plan = planned(tmp_path, ON_A_GPU, f"each.run.cache={tmp_path}")
    assert [*plan] == ["base", "base_text", "base_answers", "talker", "talker_answers", "exported"]
    trained = [row for row in plan.values() if row["verb"] == "train"]
    assert all(row["seconds"] and row["tokens"] and row["kept_bytes"] for row in trained)
    assert [*tmp_path.glob("runs")] == []


def test_a_refused_training_is_the_problem_of_its_row(tmp_path):
    plan = planned(tmp_path, "talker.optimzer=adamw")
    assert "optimzer" in plan["talker"]["problem"]
    assert not plan["base"]["problem"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("talker.optimiser.lr=3", r"^stage talker: optimiser\.lr=3.*optimizer\.lr=3"),
        ("base.lr=1e-3", r"^stage base: lr=1e-3.*Did you mean optimizer\.lr=1e-3"),
        ("base.optimizer.lr=fast", r"^stage base: optimizer\.lr=fast is not a number"),
        ("talker.schedule.warmup_steps=900", r"^stage talker: schedule\.warmup_steps=900 take 900 steps, longer than"),
        ("talker.source=python_stdlib", "^stage talker: source: must be one of conversations with task=sft"),
        ("talker.task=dpo", "^stage talker: source: must be one of pairs of answers with task=dpo"),
        ("pipeline.stages.talker_answers.words=[--maed,7]", r"^stage talker_answers: --maed: there is no such flag"),
    ],
)
def test_a_wrong_word_of_a_late_stage_is_refused_before_the_first(word: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        require_stages(read_pipeline([f"run.root={tmp_path}", word]), READERS)


def test_a_missing_file_of_a_late_training_keeps_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^stage talker: source\.paths: nowhere\.txt does not exist"):
        require_stages(
            read_pipeline([f"run.root={tmp_path}", "talker.source=files", "talker.source.paths=[nowhere.txt]"]),
            READERS,
        )


def test_words_of_a_base_that_its_run_does_not_hand_on_are_no_fault_of_a_later_stage(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("")
    prefer = ["talker.task=dpo", "talker.source=preference_pairs", f"talker.source.paths=[{pairs}]"]
    require_stages(read_pipeline([f"run.root={tmp_path}", "base.optimizer.momentum=0.9", *prefer]), READERS)
    inherited = ["--allow-target", "mine.", "talker.optimizer=inherited"]
    require_stages(read_pipeline([f"run.root={tmp_path}", *inherited]), READERS)


def test_files_of_an_evaluation_are_looked_for_before_anything_runs(tmp_path: Path) -> None:
    there, key = tmp_path / "a.txt", "pipeline.stages.base_answers.words"
    there.touch()
    root = f"run.root={tmp_path}"
    require_stages(read_pipeline([root, f"{key}=[--text,{there}]"]), READERS)
    with pytest.raises(ConfigurationError, match=r"base_answers\.words: --core nowhere does not exist"):
        require_stages(read_pipeline([root, f"{key}=[--core,nowhere]"]), READERS)
