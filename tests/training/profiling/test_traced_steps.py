from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.training.profilers import TorchTrace


def test_another_rank_and_an_attempt_cut_short_write_nothing(make_run, caplog):
    run = make_run(steps=6)
    other = TorchTrace(wait_steps=0, warm_up_steps=1, active_steps=1, ranks=[1], num_ranks=2, context=run.context)
    run.fit(TokenBudget(context=run.context), other)
    assert not (run.context.folder / "profile").exists()
    short = make_run(steps=3, name="short")
    trace = TorchTrace(wait_steps=0, warm_up_steps=1, active_steps=2, context=short.context)
    short.context.last_step.steps = 2  # as a stop does
    short.fit(TokenBudget(context=short.context), trace)
    assert not (short.context.folder / "profile").exists()
    assert "ended before its trace did" in caplog.text
