import pytest

from lmtrain.accounting.training_plan.stage_work import EvaluationWork
from lmtrain.errors import ConfigurationError
from lmtrain.run.pipelines import plan as module
from lmtrain.run.pipelines.check import StageReaders
from lmtrain.run.pipelines.plan import plan_pipeline
from lmtrain.run.pipelines.reader import read_pipeline
from lmtrain.run.pipelines.run import EndedStage

READERS = StageReaders(
    evaluation=lambda words: EvaluationWork(num_answers=350 if "--made" in words else 0, answer_tokens=40),
    export=lambda _: None,
)
ON_A_GPU = "each.cluster=h100_8x"


def planned(tmp_path, *words):
    return plan_pipeline(read_pipeline([f"run.root={tmp_path}", *words]), READERS)


def test_every_stage_has_its_row_and_data_goes_before_its_training(tmp_path):
    plan = planned(tmp_path, ON_A_GPU, f"each.run.cache={tmp_path}")
    names = ["base: data", "base", "base_text", "base_answers", "talker: data", "talker", "talker_answers", "exported"]
    assert [stage.name for stage in plan.stages] == names
    assert [stage.verb for stage in plan.stages][:3] == ["prepare", "train", "evaluate"]
    assert plan.seconds == pytest.approx(sum(stage.seconds or 0 for stage in plan.stages))
    assert plan.fits_disk is True
    assert [*tmp_path.glob("runs")] == []


def test_the_same_data_is_prepared_once(tmp_path):
    words = ["source=files", f"source.paths=[{tmp_path / 'notes.txt'}]", "packing=document", "tokenizer.chat=true"]
    (tmp_path / "notes.txt").write_text("text " * 1000)
    plan = planned(tmp_path, ON_A_GPU, *(f"each.{word}" for word in words), "talker.task=pretrain")
    assert [stage.name for stage in plan.stages if stage.verb == "prepare"] == ["base: data"]


def test_a_preflight_follows_the_data_in_short_and_keeps_nothing(tmp_path):
    words = [ON_A_GPU, f"each.run.cache={tmp_path}"]
    plan = planned(tmp_path, *words, "++pipeline.preflight_steps=2")
    assert [stage.name for stage in plan.stages][:4] == ["base: data", "talker: data", "preflight", "base"]
    preflight = plan.stages[2]
    assert preflight.kept_bytes == 0
    assert preflight.seconds is not None
    starts = 2 * 60 + 4 * 4  # of trainings, and of the others
    assert starts < preflight.seconds < starts + 60


def test_a_refused_training_is_a_problem_of_its_own_and_of_its_followers(tmp_path):
    plan = planned(tmp_path, "talker.optimzer=adamw")
    problems = {stage.name: stage.problem for stage in plan.stages if stage.problem}
    assert "optimzer" in problems["talker"]
    assert problems["talker_answers"] == problems["exported"] == "needs the plan of talker"
    assert "base" not in problems
    assert not plan.is_possible


def test_a_stage_with_an_optimizer_of_its_own_is_planned_without_its_base_s(tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("")
    prefer = ("talker.task=dpo", "talker.source=preference_pairs", f"talker.source.paths=[{pairs}]")
    plan = planned(tmp_path, "base.optimizer.momentum=0.9", *prefer)
    assert not [stage.problem for stage in plan.stages if stage.problem]


def test_a_training_after_an_ended_one_is_planned_from_its_run(tmp_path, monkeypatch):
    planned_words = []

    def plan_training(words, **_):
        planned_words.append(words)
        raise ConfigurationError("enough")

    ended = EndedStage(key="", seconds=1.0, ended_at=1.0, scores={})
    done = ("base", "base_text", "base_answers")
    monkeypatch.setattr(module, "done_stages", lambda _: dict.fromkeys(done, ended))
    monkeypatch.setattr(module, "planned_training", plan_training)
    assert not planned(tmp_path).is_possible
    words = planned_words[-1]
    assert f"init_from={tmp_path}/speedrun_cpu/base" in words, "its data is known by the tokenizer of its base"


def test_ended_stages_need_nothing_more(tmp_path, monkeypatch):
    ended = EndedStage(key="", seconds=1.0, ended_at=1.0, scores={})
    monkeypatch.setattr(module, "done_stages", lambda _: dict.fromkeys(("base_text", "talker"), ended))
    plan = planned(tmp_path, ON_A_GPU)
    assert [stage.name for stage in plan.stages if stage.is_done] == ["base_text", "talker"]
    assert "talker: data" not in [stage.name for stage in plan.stages]
