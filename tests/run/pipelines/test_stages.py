from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.pipelines.stages import VERBS, PipelineStage, read_pipeline


def test_a_change_reaches_the_stages_behind_it_and_no_other() -> None:
    before, after = read_pipeline([]), read_pipeline(["talker.seed=7"])
    changed = [stage.name for stage in before.stages if before.key(stage) != after.key(after.stage(stage.name))]
    assert changed == ["talker", "talker_answers", "exported"]


def test_another_text_of_an_evaluation_is_a_change(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    stages = tuple(PipelineStage(name=f"of_{verb}", verb=verb, of=None, words=("--text", str(text))) for verb in VERBS)
    pipeline = replace(read_pipeline(["pipeline=speedrun_cpu"]), stages=stages)
    keys = []
    for content in (None, "one", "two", "one"):
        if content is not None:
            text.write_text(content)
        keys.append({stage.verb: pipeline.key(stage) for stage in stages})
    assert keys[1] == keys[3]
    assert {verb for verb in VERBS if len({each[verb] for each in keys}) > 1} == {"evaluate"}
    assert len({each["evaluate"] for each in keys}) == 3


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


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("pipeline=speed_run", "pipeline=speed_run: unknown option. Did you mean 'pipeline=speedrun'"),
        ("pipeline.preflight_steps=-1", r"preflight_steps: must be an integer >= 0.*got -1"),
        ("+pipeline.stages={../../x: {verb: train}}", r"stages\.\.\./\.\./x: a stage's name must be"),
        ("pipeline.stages.base.verb=trian", r"base\.verb: must be one of .*got trian\. Did you mean 'train'\?"),
        ("pipeline.stages.talker.of=nope", r"talker\.of: must name an earlier training stage \(base\), got nope"),
        ("pipeline.stages.base.words=a", r"words: must be a list.*write 'pipeline\.stages\.base\.words=\[a\]'"),
        ("+pipeline.stages.base.wrods=[a]", "must have the keys verb, of, words"),
        ('pipeline.stages.base.words=["--allow-target=mine."]', "a file must not allow targets; pass"),
        ("budget.tokens=3", r"write each\.budget\.tokens=3 .* base\.budget"),
        ("pipelin=speedrun_cpu", r"Did you mean 'pipeline'\?"),
        ("talkr.seed=3", r"Did you mean 'talker'\?"),
        ("speedrun_cpu", "must be KEY=VALUE"),
        ("talker.run.name=x", r"talker\.run\.name=x is decided by the stage's place"),
        ("run.name=a/../b", "run.name: must be"),
    ],
)
def test_a_wrong_pipeline_is_refused(word: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_pipeline([word])


def test_a_typed_target_reaches_every_stage() -> None:
    read = read_pipeline(["pipeline=speedrun_cpu", "--allow-target=my_package."])
    assert read.allowed == ("my_package.",)
    assert all(read.command(stage)[-2:] == ["--allow-target", "my_package."] for stage in read.stages)
