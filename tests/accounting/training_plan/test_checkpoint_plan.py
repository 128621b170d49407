import math

import pytest

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.training_plan.plan_parts import checkpoint_plan
from tests import facts

ONE_BILLION = TrainedParameters(num_total=10**9, num_hidden_matrix=0, num_largest_block=0, num_outside_blocks=0)
SETTINGS = {
    "precision": facts.precision("bf16_mixed").bytes_of,
    "optimizer": facts.optimizer("adamw").state,
    "num_kept": 2,
}


def test_cadence_loses_least_time():
    """Time lost per second at cadence T is stall / T + T / (2 x between failures): the plan's T is its minimum."""
    plan = checkpoint_plan(
        ONE_BILLION, num_devices=16_384, num_parts=8, num_nodes=2048, device_hours_per_failure=50_000.0, **SETTINGS
    )
    assert plan.cadence is not None
    stall, between, every = (
        plan.cadence.stall_seconds,
        plan.cadence.seconds_between_failures,
        plan.cadence.every_seconds,
    )
    assert stall == pytest.approx(12e9 / 8 / 10e9)
    assert between == pytest.approx(3.05 * 3600, rel=1e-3), "one in about three hours, as published"
    assert every == pytest.approx(math.sqrt(2 * stall * between))
    assert _lost(every, stall, between) <= min(_lost(every * factor, stall, between) for factor in (0.9, 1.1))
    assert plan.cadence.lost_share == pytest.approx(_lost(every, stall, between))

    one_node = checkpoint_plan(ONE_BILLION, num_devices=8, device_hours_per_failure=1e-3, **SETTINGS).cadence
    assert one_node is not None
    assert one_node.every_seconds == 12, "as long as a write of 12 GB by one node"


def _lost(every, stall, between):
    return stall / every + every / (2 * between)
