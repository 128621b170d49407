from dataclasses import replace

import pytest

from lmtrain.accounting.training_plan.plan import Speed
from lmtrain.run.planning.make_plan import with_evaluation
from tests.configs import config_of
from tests.planned import PLAN


@pytest.mark.parametrize(("seconds", "is_enough_for"), [(150.0, 18), (2000.0, 250), (5000.0, 650), (6400.0, 1000)])
def test_a_budget_of_time_pays_for_steps_and_passes(seconds, is_enough_for):
    speed = Speed(step_seconds=4.0, mfu_palm=0.4, source="a test")
    end = replace(PLAN.horizon, seconds=seconds, time_limit="hours")
    plan = replace(PLAN, speed=speed, horizon=end)
    config = config_of("callbacks.validation.num_passes=2")
    held_out = [600 * PLAN.batch.tokens_per_step]
    found = with_evaluation(plan, config, held_out=held_out)
    assert found.horizon.steps == is_enough_for
    assert found.seconds is not None
    assert found.seconds <= seconds
    longer = with_evaluation(replace(plan, horizon=end.ending_at(is_enough_for + 1)), config, held_out=held_out)
    assert longer.horizon.steps == is_enough_for
    only_sized = with_evaluation(plan, config, held_out=held_out, decides_end=False)
    assert (only_sized.horizon, only_sized.evaluation) == (end, found.evaluation)
    assert only_sized.expected_tokens == found.horizon.tokens
