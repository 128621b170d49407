import math

import pytest

from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.early_stopping import EarlyStopping
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.callbacks.validation import Validation
from tests.callbacks.tiny_run import AtStep


class Scripted(Validation):
    """A validation with given values, one a step, the first before any."""

    def __init__(self, values, **settings):
        super().__init__(every_steps=1, **settings)
        self._values = values

    def on_due_step(self, trainer, pl_module):
        step = trainer.global_step
        assert self.context is not None
        scores = self.context.scores
        scores.step, scores.metrics = step, {"validation/bits_per_byte": self._values[step]}


def train(run, values, *others, checkpoint=None, **settings):
    """Train over scripted validations, saving every two steps; return the last step and the reason for its end."""
    run.context.scores.step = None  # as in a new process
    stopping = EarlyStopping(context=run.context, **settings)
    validation = Scripted(values, context=run.context)
    saves = Checkpoint(every_steps=2, context=run.context)
    callbacks = [TokenBudget(context=run.context), validation, *others, saves, stopping]
    return run.fit(*callbacks, checkpoint=checkpoint).global_step, stopping.reason


@pytest.mark.parametrize(
    ("settings", "values", "last_step"),
    [
        ({"patience": 2}, [9, 8, 7, 7, 7, 6, 5], 4),
        ({"patience": 2}, [9, 8, 8, 7, 7, 6, 5], 6),  # one that is better starts the count anew
        ({"patience": 2, "min_delta": 0.5}, [9, 8, 7.9, 7.8, 7, 6, 5], 3),
        ({"patience": 2}, [9, 8, math.nan, math.inf, 7, 6, 5], 3),
        ({"patience": 3}, [9, 8, 7, 6, 5, 4, 3], 6),
    ],
)
def test_a_run_ends_where_validations_get_no_better(make_run, settings, values, last_step):
    run = make_run(steps=6)
    assert train(run, values, **settings)[0] == last_step
    assert run.saved_steps()[-1] == last_step


def test_scores_of_other_bytes_are_judged_anew(make_run):
    run = make_run(steps=6)
    reads_more = AtStep(2, lambda _: setattr(run.context.scores, "num_bytes", 9))
    assert train(run, [5, 4, 8, 7, 7.5, 7.5, 7], reads_more, patience=2)[0] == 5


def test_each_best_validation_and_the_last_step_are_saved(make_run):
    run = make_run(steps=6)
    stopping = EarlyStopping(patience=2, context=run.context)
    saves = Checkpoint(keep_last=9, context=run.context)
    validation = Scripted([9, 8, 9, 7, 8, 8, 6], context=run.context)
    run.fit(TokenBudget(context=run.context), validation, saves, stopping)
    assert run.saved_steps() == [1, 3, 5]


def test_a_resumed_run_counts_on_and_an_ended_one_trains_no_step(make_run):
    run, values = make_run(steps=9), [9, 8, *([8] * 8)]

    def stop(trainer):
        trainer.should_stop = True

    assert train(run, values, AtStep(2, stop), patience=3) == (2, None)
    folder = run.context.checkpoints_folder
    for saved, patience, last_step in [(2, 3, 4), (4, 3, 4), (4, 5, 6)]:  # more patience goes on
        assert train(run, values, checkpoint=folder / f"step_{saved:08d}", patience=patience)[0] == last_step
