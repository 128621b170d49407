"""`task=dpo`, `task=grpo` and `task=distill` as a person types them: a resume, ranks, adapters, and refusals."""

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from lmtrain.errors import DataError
from lmtrain.report.ledger import read_ledger
from lmtrain.report.ledger_page import page
from lmtrain.report.show import plain_text
from lmtrain.run.builders.objective import before_training
from lmtrain.run.planning.plan import planned_runs
from lmtrain.training.objectives.objective import Objective
from tests import tiny
from tests.configs import config_of

BASE = [*tiny.MODEL, *tiny.BATCH, *tiny.QUIET, "run.log_every_steps=1", "source=made_conversations"]
DATA = [
    "source.num_conversations=60",
    "data.folder.references=false",
    "tokenizer=byte_level",
    "tokenizer.vocab_size=512",
]
SPLITS = ["data.folder.validation_fraction=0.1", "data.folder.test_fraction=0.1"]
DPO = [
    *("init_from=runs/base", "task=dpo", "source.paths=[pairs.jsonl]", "batch.context_tokens=32", *tiny.QUIET),
    *("run.log_every_steps=1", "data.folder.references=false", "optimizer.lr=3e-3", "schedule=constant", *SPLITS),
]

GRPO = [
    *("init_from=runs/base", "task=grpo", "source=preference_pairs", "source.paths=[pairs.jsonl]", *tiny.QUIET),
    *("run.log_every_steps=1", "batch.context_tokens=32", "optimizer.lr=1e-2", "data.folder.references=false", *SPLITS),
    *("objective.num_generations=4", "objective.num_new_tokens=8", "batch.micro_batch_sequences=4"),
    *("batch.tokens_per_step=256", "objective.num_iterations=2", "objective.beta=0.01"),
    *("objective.rewards.text._target_=tests.rollouts.letters.early_letters", "--allow-target", "tests."),
]


def train(folder, *words, num_ranks=1, code=0):
    from tests import forked

    ended = forked.run(
        tiny.PROJECT / "train.py", words, folder=folder, environment=tiny.environment(), num_ranks=num_ranks
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def curve(folder, name, key):
    points = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    return {point["step"]: point["metrics"][key] for point in points if key in point["metrics"]}


@pytest.fixture(scope="module", name="folder")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dpo")
    lines = [{"prompt": f"say {n}", "chosen": f"{n} yes", "rejected": f"{n} no"} for n in range(60)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    train(folder, *BASE, *DATA, *SPLITS, "tokenizer.chat=true", "run.name=base", "budget.steps=2")
    said = train(folder, *DPO, "run.name=whole", "budget.steps=6")
    assert "reference: log-probabilities of " in said
    train(folder, *DPO, "run.name=parts", "budget.steps=3")
    said = train(folder, *DPO, "run.name=parts", "budget.steps=6")
    assert "continuing from step 3" in said
    return folder


def test_preference_grows_from_the_loss_of_a_coin_and_a_resume_changes_nothing(folder) -> None:
    losses = curve(folder, "whole", "train/loss")
    assert losses[1] == pytest.approx(np.log(2), abs=1e-5)  # the model is its reference
    assert losses[6] < losses[1]
    assert curve(folder, "whole", "preference/margin")[6] > 0
    assert 0 <= curve(folder, "whole", "preference/accuracy")[6] <= 1
    for key in ("train/loss", "preference/chosen_reward", "train/gradient_norm"):
        assert curve(folder, "parts", key) == curve(folder, "whole", key)
    (kept,) = (folder / "runs" / "whole").glob("reference_*.npy")
    assert np.isfinite(np.load(kept)).any()


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_learn_the_same(folder, strategy: str) -> None:
    words = [*DPO, f"run.name={strategy}", "budget.steps=3", f"strategy={strategy}", "trainer.devices=2"]
    train(folder, *words, num_ranks=2)
    expected = {step: loss for step, loss in curve(folder, "whole", "train/loss").items() if step <= 3}
    assert curve(folder, strategy, "train/loss") == pytest.approx(expected, rel=1e-5)  # fp32, other orders of sums


@pytest.mark.distributed
def test_a_loss_without_a_reference_is_the_same_over_any_division_of_a_step(folder) -> None:
    words = [*DPO, "task=orpo", "budget.steps=2"]
    assert "reference: " not in train(folder, *words, "run.name=orpo", "batch.micro_batch_sequences=8")
    train(folder, *words, "run.name=orpo_2", "batch.micro_batch_sequences=2")
    ranks = ["batch.micro_batch_sequences=2", "strategy=ddp", "trainer.devices=2"]
    train(folder, *words, "run.name=orpo_ddp", *ranks, num_ranks=2)
    for name in ("orpo_2", "orpo_ddp"):
        for key in ("train/loss", "train/gradient_norm", "preference/margin"):
            assert curve(folder, name, key) == pytest.approx(curve(folder, "orpo", key), rel=1e-5)  # orders of sums
    assert curve(folder, "orpo", "train/loss")[2] < curve(folder, "orpo", "train/loss")[1]


DISTILL = [
    *(*BASE, *DATA, *SPLITS, "tokenizer.chat=true", "task=distill", "teacher=runs/base", "objective.top_k=8"),
    *("model.width=16", "optimizer.lr=1e-2", "schedule=constant", "budget.steps=4"),
]


@pytest.fixture(scope="module", name="students")
def distilled(folder):
    train(folder, *DISTILL, "run.name=student")
    train(folder, *DISTILL, "run.name=student_parts", "budget.steps=2")
    train(folder, *DISTILL, "run.name=student_parts")
    return folder


def test_a_student_learns_from_its_teacher_and_a_resume_changes_nothing(students) -> None:
    divergence = curve(students, "student", "distillation/divergence")
    assert 0 < divergence[4] < divergence[1]
    for key in ("train/loss", "distillation/cross_entropy", "train/gradient_norm"):
        assert curve(students, "student_parts", key) == curve(students, "student", key)


def test_a_plan_counts_the_forward_passes_and_the_weights_of_a_teacher(students, monkeypatch) -> None:
    base, student = (json.loads((students / "runs" / name / "plan.json").read_text()) for name in ("base", "student"))
    forward = base["flops_per_token"]["palm"] / 3 * student["batch"]["tokens_per_step"]
    assert student["teacher"]["flops_per_step"] == pytest.approx(forward)
    assert student["teacher"]["weight_bytes"] == 4 * base["parameters"]["total"]
    monkeypatch.chdir(students)
    (run,) = planned_runs(DISTILL)
    assert run.plan.memory is not None
    chunk = run.plan.batch.sequences_per_micro_step * run.plan.batch.context_tokens / 8
    assert run.plan.memory.workspace >= 8 * 4 * chunk * 512, "eight tensors of scores"
    of_student = student["flops_per_token"]["palm"] * student["batch"]["tokens_per_step"]
    assert student["time"]["step_seconds"] * student["time"]["mfu_palm"] * 1e12 == pytest.approx(of_student)


@pytest.mark.distributed
def test_students_on_ranks_with_other_counts_of_tokens_learn_the_same(students) -> None:
    train(students, *DISTILL, "run.name=student_ddp", "strategy=ddp", "trainer.devices=2", num_ranks=2)
    for key in ("train/loss", "train/gradient_norm", "distillation/cross_entropy"):
        expected = curve(students, "student", key)
        assert curve(students, "student_ddp", key) == pytest.approx(expected, rel=1e-5)  # fp32, other orders of sums


def test_a_teacher_is_asked_for_fits_and_knows_the_same_ids(students) -> None:
    train(students, *DISTILL, "run.name=none", "teacher=null", code=2)
    train(students, *DISTILL, "run.name=long", "batch.context_tokens=128", "batch.tokens_per_step=256", code=2)
    said = train(students, *DISTILL, "run.name=other", "tokenizer=bpe", "tokenizer.vocab_size=400", code=2)
    assert "teacher=runs/base has another tokenizer" in said
    said = train(students, *DISTILL, "run.name=student", "teacher=runs/student_parts", "budget.steps=5", code=2)
    assert "teacher" in said


@pytest.fixture(scope="module", name="rewarded")
def written(folder):
    train(folder, *GRPO, "run.name=answers", "budget.steps=6")
    train(folder, *GRPO, "run.name=answers_parts", "budget.steps=3")  # between two steps on the same answers
    train(folder, *GRPO, "run.name=answers_parts", "budget.steps=6")
    return folder


def test_answers_are_written_anew_and_a_resume_between_their_steps_changes_nothing(rewarded) -> None:
    for key in ("train/loss", "reward/mean", "policy/divergence", "train/gradient_norm"):
        assert curve(rewarded, "answers_parts", key) == curve(rewarded, "answers", key)
    means = curve(rewarded, "answers", "reward/text")
    assert means == curve(rewarded, "answers", "reward/mean")
    assert [means[1], means[3], means[5]] == [means[2], means[4], means[6]]
    assert len({means[1], means[3], means[5]}) > 1
    divergence = curve(rewarded, "answers", "policy/divergence")
    assert divergence[1] == pytest.approx(0, abs=1e-7)
    assert min(divergence[2], divergence[6]) > 1e-6
    spans = [json.loads(line) for line in (rewarded / "runs/answers/events/rank0.jsonl").read_text().splitlines()]
    for name in ("generation", "rewards"):
        assert sum(span["name"] == name for span in spans) == 6  # 3 steps of 2 micro-steps
    ledger = read_ledger(rewarded / "runs/answers")
    assert ledger.time.wall_seconds == pytest.approx(sum(ledger.time.seconds.values()))
    assert min(ledger.time.seconds[kind] for kind in ("compute", "generation", "rewards")) > 0
    tokens, taught = (curve(rewarded, "answers", f"rollout/{name}") for name in ("tokens", "taught_tokens"))
    share = sum(taught.values()) / sum(tokens.values())
    assert f"{share:.1%} of their tokens in groups with different rewards" in plain_text(page(ledger))


def test_an_adapter_learns_from_rewards_and_preferences(rewarded) -> None:
    lora = ["adapter=lora", "adapter.rank=2", "budget.steps=2", "optimizer.lr=1e-2"]
    train(rewarded, *GRPO, *lora, "run.name=grpo_lora")
    assert curve(rewarded, "grpo_lora", "policy/divergence")[2] > 0
    train(rewarded, *DPO, *lora, "run.name=dpo_lora")
    first, second = (curve(rewarded, "dpo_lora", "train/loss")[step] for step in (1, 2))
    assert first == pytest.approx(np.log(2), abs=1e-5)  # the reference is the base without the adapter
    assert second != first


@pytest.mark.distributed
def test_ranks_share_the_answers_of_a_step(rewarded) -> None:
    train(rewarded, *GRPO, "run.name=answers_ddp", "budget.steps=3", "strategy=ddp", "trainer.devices=2", num_ranks=2)
    assert 0 <= curve(rewarded, "answers_ddp", "reward/mean")[3] <= 1


def test_a_reward_that_now_and_then_fails_costs_answers_and_one_that_always_fails_ends_the_run(rewarded) -> None:
    (rewarded / "brittle").touch()
    train(rewarded, *GRPO, "run.name=brittle", "budget.steps=2")
    (rewarded / "brittle").unlink()
    failed = curve(rewarded, "brittle", "reward/failed")
    assert 0 < failed[1] < 1
    assert np.isfinite(list(curve(rewarded, "brittle", "train/loss").values())).all()
    (rewarded / "broken").touch()
    said = train(rewarded, *GRPO, "run.name=answers_parts", "budget.steps=8", code=4)
    assert "objective.rewards.text must give one finite number" in said
    (rewarded / "broken").unlink()
    assert "continuing from step 6" in train(rewarded, *GRPO, "run.name=answers_parts", "budget.steps=8")
    said = train(rewarded, *GRPO, "batch.micro_batch_sequences=2", "run.name=x", code=2)
    assert "batch.micro_batch_sequences: must be a multiple of 4" in said


@pytest.mark.parametrize(("task", "source"), [("dpo", "preference_pairs"), ("grpo", "made_conversations")])
def test_prepared_text_is_no_answer(task: str, source: str) -> None:
    text = SimpleNamespace(folder="data/text-1", split=lambda _: SimpleNamespace(has_loss_mask=False))
    data: Any = SimpleNamespace(dataset=text)
    rows: Any = SimpleNamespace(plan=SimpleNamespace(batch=SimpleNamespace(sequences_per_micro_step=8)))
    config, objective = config_of(f"task={task}", "init_from=x"), cast("Objective", object())
    with pytest.raises(DataError, match=rf"data/text-1 is text, .* task={task} .*. Did you mean source={source}, or"):
        before_training(config, objective, datamodule=data, context=rows)
