import math

import pytest

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.training_plan.checkpoint_plan import checkpoint_plan
from tests import facts

ONE_BILLION = TrainedParameters(num_total=10**9, num_hidden_matrix=0, num_largest_block=0, num_outside_blocks=0)
SETTINGS = {
    "precision": facts.precision("bf16_mixed").bytes_of,
    "optimizer": facts.optimizer("adamw").state,
    "num_kept": 2,
}


def test_a_checkpoint_holds_weights_and_state_but_no_gradients():
    plan = checkpoint_plan(ONE_BILLION, **SETTINGS)
    assert plan.checkpoint_bytes == 12 * 10**9
    assert plan.kept_bytes == 3 * 12 * 10**9
    assert plan.every_seconds is None


def test_cadence_loses_least_time():
    """Time lost per second at cadence T is stall / T + T / (2 x between failures): the plan's T is its minimum."""
    stall, between = 10.0, 86_400.0
    every = checkpoint_plan(
        ONE_BILLION, stall_seconds=stall, seconds_between_failures=between, **SETTINGS
    ).every_seconds
    assert every is not None
    assert every == pytest.approx(math.sqrt(2 * stall * between))
    assert _lost(every, stall, between) <= min(_lost(every * factor, stall, between) for factor in (0.9, 1.1))


def _lost(every, stall, between):
    return stall / every + every / (2 * between)
