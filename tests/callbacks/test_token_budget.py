from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.token_budget import TokenBudget


def test_budget_stops_at_first_step_past_limit(make_run):
    run = make_run(steps=3, accumulation_micro_steps=2)
    assert run.fit(TokenBudget(context=run.context)).global_step == 3


def test_resuming_with_the_budget_spent_trains_no_step(make_run):
    run = make_run(steps=2)
    run.fit(TokenBudget(context=run.context), Checkpoint(context=run.context))
    saved = run.context.checkpoints_folder / "step_00000002"
    assert run.fit(TokenBudget(context=run.context), checkpoint=saved).global_step == 2


def test_resuming_with_a_larger_budget_trains_the_rest(make_run):
    run, longer = make_run(steps=2), make_run(steps=5)
    run.fit(TokenBudget(context=run.context), Checkpoint(context=run.context))
    saved = run.context.checkpoints_folder / "step_00000002"
    assert longer.fit(TokenBudget(context=longer.context), checkpoint=saved).global_step == 5
