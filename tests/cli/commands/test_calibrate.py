"""The time of a step from real ones; the whole way is in test_doctor.py."""

import pytest

from lmtrain.accounting.observed.time_accounts import StopwatchReading
from lmtrain.cli.commands.calibrate import calibration_from


def reading(step: int, compute: float, checkpoint: float = 0.0) -> StopwatchReading:
    return StopwatchReading(
        step=step, time=0.0, seconds={"setup": 7.0, "compute": compute, "data_wait": 0.1, "checkpoint": checkpoint}
    )


def test_a_step_is_timed_after_the_warm_ones_without_pauses():
    found = calibration_from((reading(0, 0.0), reading(5, 50.0), reading(10, 60.0), reading(40, 75.0, 100.0)))
    assert found.num_steps == 30
    assert found.step_seconds == pytest.approx(0.5)
    assert found.setup_seconds == 7.0
