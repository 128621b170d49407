from dataclasses import replace
from pathlib import Path

from lmtrain.run.pipelines.reader import read_pipeline
from lmtrain.run.pipelines.stages import VERBS, PipelineStage


def test_stages_follow_one_another_in_a_folder_of_their_own(tmp_path: Path) -> None:
    pipeline = read_pipeline([f"run.root={tmp_path}", "run.name=mine", "each.trainer.devices=2", "talker.seed=7"])
    place = [f"run.root={tmp_path}", "run.name=mine/talker", f"init_from={tmp_path}/mine/base"]
    commands = {stage.name: pipeline.command(stage) for stage in pipeline.stages}
    assert commands["talker"][:5] == ["train", *place, "trainer.devices=2"]
    assert commands["talker"][-1] == "seed=7"
    assert commands["base"] == [
        *["train", f"run.root={tmp_path}", "run.name=mine/base"],
        *["trainer.devices=2", "budget.tokens=2.2M", "callbacks.validation.max_tokens=50K"],
    ]
    assert commands["base_text"] == ["evaluate", f"{tmp_path}/mine/base"]
    assert commands["exported"] == ["export", "hf", f"{tmp_path}/mine/talker", f"{tmp_path}/mine/exported"]
    assert read_pipeline([]).folder == Path.cwd() / "runs" / "speedrun_cpu"


def test_a_training_finds_the_options_of_the_pipeline_s_own_folder_and_code(tmp_path: Path) -> None:
    pipeline = read_pipeline(["--config-dir", str(tmp_path), "--allow-target", "my_package."])
    commands = {stage.name: pipeline.command(stage) for stage in pipeline.stages}
    assert commands["base"][-4:] == ["--config-dir", str(tmp_path), "--allow-target", "my_package."]
    assert commands["exported"][-2:] == ["--allow-target", "my_package."]
    assert str(tmp_path) not in commands["base_text"], "it composes nothing"


def test_a_plan_knows_the_base_before_it_exists() -> None:
    pipeline = read_pipeline(["base.model.width=64", "base.run.log_every_steps=1"])
    words = pipeline.ways_to_plan(pipeline.stage("talker"))[0]
    assert words[:3] == ["callbacks.validation.max_tokens=50K", "model.width=64", "run.log_every_steps=1"]
    assert words.index("momentum_schedule=none") < words.index("task=sft")
    assert [word for word in words if word.startswith("budget")] == ["budget.tokens=600K"]


def test_a_plan_takes_the_newest_run_that_is_there_for_the_stages_before_it(tmp_path: Path) -> None:
    more = '+pipeline.stages.more={verb: train, of: talker, words: ["run.log_every_steps=2"]}'
    pipeline = read_pipeline([f"run.root={tmp_path}", more, "base.seed=1", "talker.seed=2"])
    for words in pipeline.ways_to_plan(pipeline.stage("more"), done=["base"]):
        assert f"init_from={pipeline.folder}/base" in words
        assert "seed=1" not in words
    assert "seed=2" in pipeline.ways_to_plan(pipeline.stage("more"), done=["base"])[0]
    nearest = pipeline.ways_to_plan(pipeline.stage("more"), done=["base", "talker"])[0]
    assert nearest[0] == f"init_from={pipeline.folder}/talker"


def test_a_change_reaches_the_stages_behind_it_and_no_other() -> None:
    before, after = read_pipeline([]), read_pipeline(["talker.seed=7"])
    changed = [stage.name for stage in before.stages if before.key(stage) != after.key(after.stage(stage.name))]
    assert changed == ["talker", "talker_answers", "exported"]


def test_a_preflight_is_every_stage_in_short_in_a_folder_of_its_own(tmp_path: Path) -> None:
    words = ["pipeline=speedrun", f"run.root={tmp_path}", "each.budget.tokens=9M", "each.seed=3"]
    short = read_pipeline(words).preflight()
    base, core = short.command(short.stage("base")), short.command(short.stage("base_core"))
    assert base[:4] == ["train", f"run.root={tmp_path}", "run.name=speedrun/preflight/base", "seed=3"]
    assert [word for word in base if word.startswith("budget")] == ["budget=steps", "budget.steps=2"]
    assert "model.depth=24" in base
    assert core == ["evaluate", f"{tmp_path}/speedrun/preflight/base", "--core", "eval_bundle", "--max-items", "11"]
    assert f"init_from={tmp_path}/speedrun/preflight/base" in short.command(short.stage("talker"))


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
