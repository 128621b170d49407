from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.pipelines.plan import (
    build_trainings,
    plan_pipeline,
    require_same_start,
    require_stages,
    stage_check,
)
from lmtrain.run.pipelines.stages import CommandPipeline, read_pipeline
from lmtrain.run.run_config import read_config

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
        ("base.lr=1e-3", r"^stage base: lr=1e-3.*write optimizer\.lr=1e-3"),
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
        build_trainings(read_pipeline([f"run.root={tmp_path}", *small, word]), [])


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


LONGER = ["talker.batch.context_tokens=512", "talker.batch.tokens_per_step=4096"]


def looked_at(words: list[str]) -> CommandPipeline:
    """Look at both trainings of a pipeline, without their plans."""
    read = read_pipeline(["base.model=llama_micro", *words])
    base, talker = (read_config(compose_config(read.ways_to_plan(read.stage(name))[0])) for name in ("base", "talker"))
    stage_check(read, read.stage("base"))(base)
    stage_check(read, read.stage("talker"))(talker)
    require_same_start(read, read.stage("talker"), talker, base=base)
    return read


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["talker.tokenizer=bpe_1024"], r"tokenizer=bpe_1024: .* set base\.tokenizer for both"),
        (["talker.tokenizer.vocab_size=512"], r"tokenizer\.vocab_size=512: the weights start from base"),
        (["talker.tokenizer=bpe"], "tokenizer=bpe: the weights"),  # of the same kind, learned from other text
        (["talker.model.width=96"], r"the run of base is another model: model\.width is 64 there and 96 here"),
        (LONGER, r"batch\.context_tokens: must be at most model\.max_context_tokens=256 of base"),
        (["talker.source=python_stdlib"], "the source .* is text, and task=sft learns only"),
        (["talker.task=dpo"], "the source .* gives no pairs of answers, and task=dpo"),
        (["base.tokenizer=byte_level"], r"the source .* special tokens of no style .*; set base\.tokenizer\.chat=true"),
        (["talker.tokenizer=byte_level"], r"tokenizer=byte_level: the weights start from base"),
        (["each.adapter=lora"], r"adapter=lora .* starts from random ones; set it for a later stage"),
    ],
)
def test_what_a_base_s_run_cannot_be_the_start_of_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{said}"):
        looked_at(words)


@pytest.mark.parametrize(
    "words",
    [
        ["each.tokenizer=bpe_1024"],
        ["each.model.width=96"],
        ["talker.model=llama_micro", "talker.adapter=lora"],
        ["talker.tokenizer=bpe_1024", "talker.run.allow_changes=[tokenizer]"],
        ["talker.tokenizer=bpe", "talker.source=python_stdlib", "talker.task=pretrain"],
        ["each.batch.context_tokens=512"],
        [*LONGER, "talker.model.max_context_tokens=512"],
    ],
)
def test_what_a_base_hands_on_is_no_fault(words: list[str]) -> None:
    looked_at(words)
