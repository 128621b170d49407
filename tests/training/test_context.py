from pathlib import Path
from types import SimpleNamespace

import pytest

from lmtrain.accounting.budgets import Horizon
from lmtrain.accounting.training_plan.plan_parts import EvaluationPlan
from lmtrain.training.context import RunContext

FACTS = {"plan": None, "dataset": None, "tokenizer": None, "identity": {}, "events": None, "log": None}


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
