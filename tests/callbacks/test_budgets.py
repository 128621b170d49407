"""Budgets of tokens, steps, time and dollars."""

from dataclasses import replace

import pytest

from lmtrain.accounting.budgets import STEPS_BEFORE_SPEED_IS_KNOWN, Horizon
from lmtrain.callbacks.time_budget import TimeBudget
from lmtrain.callbacks.token_budget import TokenBudget
from tests.callbacks.tiny_run import AtStep, TinyModel

STEP_SECONDS = 5.0


@pytest.fixture(autouse=True)
def steps_that_take_long(let_pass, monkeypatch):
    monkeypatch.setattr(Slow, "let_pass", staticmethod(let_pass))


class Slow(TinyModel):
    def let_pass(self, seconds):
        raise NotImplementedError

    def features(self, tokens, documents=None):
        self.let_pass(STEP_SECONDS)
        return super().features(tokens, documents)


def timed(make_run, seconds, *, earlier_seconds=0.0, most_steps=None, **settings):
    run = make_run(**settings)
    steps = STEPS_BEFORE_SPEED_IS_KNOWN
    of_time = {"limited_by": "hours", "time_limit": "hours", "seconds": seconds}
    limit = Horizon(steps=steps, tokens=1, flops=1, most_steps=most_steps, is_stand_in=True, **of_time)
    context = replace(run.context, plan=replace(run.context.plan, horizon=limit), earlier_seconds=earlier_seconds)
    return replace(run, context=context)


def train(run, *callbacks, **settings):
    budget = TimeBudget(every_steps=5, context=run.context)
    module = run.module(Slow())
    trainer = run.fit(budget, *callbacks, TokenBudget(context=run.context), module=module, **settings)
    return trainer, module


def test_a_run_stops_at_the_last_step_within_its_time(make_run):
    run = timed(make_run, 100.0)
    ended = []
    trainer, module = train(run, AtEveryStep(lambda: ended.append(run.context.spent_seconds())))
    assert 100.0 - 2 * STEP_SECONDS < ended[-1] <= 100.0
    assert module.total_steps == trainer.global_step == run.context.last_step.steps


class AtEveryStep(AtStep):
    def __init__(self, action):
        self.step, self.action = 0, action

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.action()


def test_the_schedule_is_laid_over_what_the_time_allows(make_run):
    run = timed(make_run, 150.0)
    lrs = []
    module = run.module(Slow())
    watch = AtEveryStep(lambda: lrs.append(module.optimizers().param_groups[0]["lr"]))
    run.fit(TimeBudget(every_steps=5, context=run.context), watch, TokenBudget(context=run.context), module=module)
    assert lrs[3] > 0.08, "early in the run the rate is near its start of 0.1"
    assert lrs[-1] == pytest.approx(0.05, abs=0.01), "at its end the schedule is too: half of 0.1"


def test_a_run_that_its_time_ended_trains_on_with_more(make_run, tmp_path):
    ended, _ = train(timed(make_run, 30.0))
    ended.save_checkpoint(tmp_path / "ended")
    run = timed(make_run, 70.0, earlier_seconds=30.0)
    gone_on, _ = train(run, checkpoint=tmp_path / "ended")
    assert 70.0 - 2 * STEP_SECONDS < run.context.spent_seconds() <= 70.0
    assert gone_on.global_step > ended.global_step > 1


def test_dollars_of_an_attempt_on_two_devices_count_twice_the_time_of_one(make_run):
    run = timed(make_run, 10_000.0)
    plan = replace(run.context.plan, horizon=replace(run.context.plan.horizon, time_limit="usd"))
    context = replace(run.context, plan=plan, earlier_seconds=4_980.0, earlier_device_seconds=9_960.0)
    trainer, _ = train(replace(run, context=context))
    assert trainer.global_step <= 40 / STEP_SECONDS + 1
