from pathlib import Path
from types import SimpleNamespace

import pytest

from lmtrain.accounting.budgets import Horizon
from lmtrain.accounting.training_plan.plan_parts import EvaluationPlan
from lmtrain.tracking.run_log import RunLog, read_points
from lmtrain.training.context import RunContext

FACTS = {"plan": None, "dataset": None, "tokenizer": None, "identity": {}, "events": None, "log": None}


@pytest.mark.parametrize(("rank", "is_main"), [(0, True), (1, False), (7, False)])
def test_only_the_first_rank_writes_for_all(rank, is_main):
    assert RunContext(folder=Path("runs/a"), rank=rank, **FACTS).is_main_process is is_main


def test_checkpoints_lie_inside_the_run():
    assert RunContext(folder=Path("runs/a"), **FACTS).checkpoints_folder == Path("runs/a/checkpoints")


def test_a_point_has_the_tokens_of_its_step(tmp_path):
    plan = SimpleNamespace(batch=SimpleNamespace(tokens_per_step=512))
    context = RunContext(folder=tmp_path, **FACTS | {"plan": plan, "log": RunLog(tmp_path)})
    context.append(3, {"train/loss": 2.0})
    assert [(point.step, point.tokens) for point in read_points(tmp_path / "metrics.jsonl")] == [(3, 1536)]
    RunContext(folder=tmp_path, rank=1, **FACTS | {"plan": plan}).append(4, {"train/loss": 2.0})
    assert len(list(read_points(tmp_path / "metrics.jsonl"))) == 1


def test_a_point_of_an_earlier_moment_keeps_it():
    plan = SimpleNamespace(batch=SimpleNamespace(tokens_per_step=512))
    point = RunContext(folder=Path("runs/a"), **FACTS | {"plan": plan}).point(2, {"train/loss": 2.0}, at=1000.5)
    assert (point.time, point.step, point.tokens) == (1000.5, 2, 1024)


def test_pauses_to_come_are_expected_before_the_first_and_as_long_as_the_newest_after_it():
    horizon = Horizon(steps=10, tokens=1000, flops=1, limited_by="steps")
    evaluation = EvaluationPlan(num_passes=3, tokens_per_pass=600)
    plan = SimpleNamespace(
        batch=SimpleNamespace(tokens_per_step=100), horizon=horizon, evaluation=evaluation,
        checkpoints=SimpleNamespace(write_seconds=8.0),
    )  # fmt: skip
    events = SimpleNamespace(last_pauses={})
    context = RunContext(folder=Path("runs/a"), **FACTS | {"plan": plan, "events": events})
    assert context.pauses_to_come(1, step_seconds=2.0) == pytest.approx(2 * 600 / 3 * 2.0 / 100 + 8), "as planned"
    events.last_pauses["validation"] = 3.0
    assert context.pauses_to_come(1, step_seconds=2.0) == 2 * 3 + 8
    context.expected_pauses["text_samples"] = 2.0
    assert context.pauses_to_come(1, step_seconds=2.0) == 2 * 3 + 2 + 8
    events.last_pauses |= {"checkpoint": 1.0, "text_samples": 0.5}
    assert context.pauses_to_come(1, step_seconds=2.0) == 2 * 3 + 0.5 + 1
