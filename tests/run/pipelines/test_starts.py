from pathlib import Path

import pytest

from lmtrain.accounting.training_plan.stage_work import EvaluationWork
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.pipelines.check import StageReaders, require_stages
from lmtrain.run.pipelines.plan import plan_pipeline
from lmtrain.run.pipelines.reader import read_pipeline
from lmtrain.run.pipelines.stages import CommandPipeline
from lmtrain.run.pipelines.starts import require_same_start, stage_check
from lmtrain.run.run_config import read_config

READERS = StageReaders(evaluation=lambda words: EvaluationWork(), export=lambda words: None)
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
        (["talker.tokenizer=bpe_1024"], r"tokenizer=bpe_1024: .* or type base\.tokenizer=bpe_1024 for both"),
        (["talker.tokenizer.vocab_size=512"], r"tokenizer\.vocab_size=512: its weights start from base"),
        (["talker.tokenizer=bpe"], "tokenizer=bpe: its weights"),  # of the same kind, learned from other text
        (["talker.model.width=96"], r"the run of base is another model: model\.width is 64 there and 96 here"),
        (LONGER, r"batch\.context_tokens=512 is beyond model\.max_context_tokens=256 of base"),
        (["talker.source=python_stdlib"], "the source .* is text, and task=sft learns only"),
        (["talker.task=dpo"], "the source .* gives no pairs of answers, and task=dpo"),
        (["base.tokenizer=byte_level"], r"the source .* special tokens of no style .*; set base\.tokenizer\.chat=true"),
        (["talker.tokenizer=byte_level"], r"tokenizer=byte_level: its weights start from base"),
        (["each.adapter=lora"], r"adapter=lora .* begins with random ones; nearest valid: talker\.adapter=lora"),
    ],
)
def test_what_a_base_s_run_cannot_be_the_start_of_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{said}"):
        looked_at(words)


def test_another_tokenizer_is_refused_before_the_base_and_has_no_plan(tmp_path: Path) -> None:
    small = ["base.model=llama_micro", "talker.tokenizer=bpe_1024"]
    read = read_pipeline([f"run.root={tmp_path}", *small])
    with pytest.raises(ConfigurationError, match=r"^stage talker: tokenizer=bpe_1024: its weights start from base"):
        require_stages(read, READERS)
    plan = plan_pipeline(read, READERS)
    assert [each.name for each in plan.stages if "its weights start from base" in each.problem] == ["talker"]
    assert not plan.is_possible


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


def test_a_tokenizer_and_model_of_all_trainings_are_those_of_the_first(tmp_path: Path) -> None:
    all_of_them = ["each.tokenizer=bpe_1024", "each.model.width=64", "each.model.attention=flex", "each.seed=3"]
    pipeline = read_pipeline([f"run.root={tmp_path}", *all_of_them])
    base, talker = (pipeline.command(pipeline.stage(name)) for name in ("base", "talker"))
    assert {"tokenizer=bpe_1024", "model.width=64", "seed=3"} <= {*base}
    assert [word for word in talker if word.startswith(("tokenizer", "model", "seed"))] == [
        "model.attention=flex",
        "seed=3",
    ]
    chosen = read_pipeline(["each.tokenizer=bpe_1024", "talker.experiment=nano_d12"])
    assert "tokenizer=bpe_1024" in chosen.command(chosen.stage("talker")), "an experiment inherits nothing"
