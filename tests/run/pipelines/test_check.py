from pathlib import Path

import pytest

from lmtrain.accounting.training_plan.stage_work import EvaluationWork
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.run.pipelines.check import (
    StageReaders,
    rehearse_trainings,
    require_files,
    require_stages,
)
from lmtrain.run.pipelines.reader import read_pipeline


def evaluation(words):
    if "--maed" in words:
        raise ConfigurationError("--maed: there is no such flag.")
    return EvaluationWork()


READERS = StageReaders(evaluation=evaluation, export=lambda words: None)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("talker.optimiser.lr=3", r"^stage talker: optimiser\.lr=3: .*optimizer\.lr=3"),
        ("base.lr=1e-3", r"^stage base: lr=1e-3: .*write optimizer\.lr=1e-3"),
        ("base.optimizer.lr=fast", r"^stage base: optimizer\.lr=fast is not a number"),
        ("talker.schedule.warmup_steps=900", r"^stage talker: schedule\.warmup_steps=900 take 900 steps, longer than"),
        ("pipeline.stages.talker_answers.words=[--maed,7]", r"^stage talker_answers: --maed: there is no such flag"),
    ],
)
def test_a_wrong_word_of_a_late_stage_is_refused_before_the_first(word: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        require_stages(read_pipeline([f"run.root={tmp_path}", word]), READERS)


@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        ("talker.precision=fp8", ConfigurationError, r"^stage talker: precision=fp8 needs a GPU"),
        (
            "talker.trainer.accelerator=gpu",
            EnvironmentProblem,
            r"^stage talker: trainer\.accelerator=gpu: this",
        ),
        ("talker.trainer.num_nodes=2", ConfigurationError, r"^stage talker: trainer\.num_nodes=2 needs a launcher"),
    ],
)
def test_parts_that_this_machine_cannot_build_are_refused_before_the_first_stage(word, error, said, tmp_path) -> None:
    small = ["base.model=llama_micro", "base.precision=fp32", "each.trainer.accelerator=cpu"]
    with pytest.raises(error, match=said):
        rehearse_trainings(read_pipeline([f"run.root={tmp_path}", *small, word]), [])


def test_a_missing_file_of_a_late_training_keeps_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^stage talker: source\.paths: nowhere\.txt does not exist"):
        require_stages(
            read_pipeline([f"run.root={tmp_path}", "talker.source=files", "talker.source.paths=[nowhere.txt]"]), READERS
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
    require_files(read_pipeline([f"{key}=[--text,{there}]"]))
    with pytest.raises(ConfigurationError, match=r"base_answers\.words: --core nowhere does not exist"):
        require_files(read_pipeline([f"{key}=[--core,nowhere]"]))
