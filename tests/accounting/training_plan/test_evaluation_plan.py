from functools import partial

from lmtrain.accounting.options.parts import HeldOutPasses
from lmtrain.accounting.training_plan.plan_parts import EvaluationPlan, evaluation_plan

passes = partial(HeldOutPasses, split="validation")
SIZES = {"num_steps": 100, "run_tokens": 1000, "held_out": [400]}


def test_there_is_a_pass_before_the_first_step_and_those_that_are_asked_for():
    assert evaluation_plan(passes(num_passes=4), **SIZES) == EvaluationPlan(num_passes=5, tokens_per_pass=400)
    every = evaluation_plan(passes(every_steps=30), **SIZES)
    assert every == EvaluationPlan(num_passes=1 + 4, tokens_per_pass=400), "30, 60, 90 and the last"
    assert evaluation_plan(passes(), **SIZES) == EvaluationPlan(num_passes=2, tokens_per_pass=400)
    assert evaluation_plan(passes(num_passes=4), **SIZES | {"num_steps": 2}) == EvaluationPlan(
        num_passes=3, tokens_per_pass=400
    )
