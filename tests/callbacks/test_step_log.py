from contextlib import ExitStack

import pytest

from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from tests.callbacks.tiny_run import AtStep
from tests.full_disk import full_disk


def test_every_step_has_one_line_whatever_the_interval(make_run):
    run = make_run(steps=5)
    run.fit(StepLog(every_steps=2, context=run.context), TokenBudget(context=run.context))
    lines = (run.context.folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 5
    assert list(run.points("train/loss")) == [1, 2, 3, 4, 5]


def test_loss_of_accumulated_micro_steps_is_the_loss_of_the_whole_step(make_run):
    losses = []
    for run in (make_run(name="whole", steps=1), make_run(name="parts", steps=1, accumulation_micro_steps=4)):
        run.fit(StepLog(every_steps=1, context=run.context), TokenBudget(context=run.context))
        losses.append(run.points("train/loss")[1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.faults
def test_a_disk_that_is_full_between_saves_costs_no_step_of_the_curve(make_run):
    run = make_run(steps=6)
    full = ExitStack()
    fill = AtStep(2, lambda _: full.enter_context(full_disk(room_bytes=10)))
    free = AtStep(4, lambda _: full.close())
    run.fit(StepLog(every_steps=1, context=run.context), fill, free, TokenBudget(context=run.context))
    assert [*run.points("train/loss")] == [1, 2, 3, 4, 5, 6]
