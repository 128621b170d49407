from lmtrain.accounting.observed.time_accounts import Attempt, StopwatchReading
from lmtrain.report.runs.clock import on_the_clock
from lmtrain.tracking.run_log import Point


def test_the_clock_stands_still_between_two_attempts():
    def attempt(number, first_step, *, started_at, ended_at):
        readings = (StopwatchReading(step=first_step, time=started_at, seconds={}),)
        return Attempt(number=number, started_at=started_at, ended_at=ended_at, readings=readings)

    attempts = [
        attempt(1, 0, started_at=1000.0, ended_at=1010.0),
        attempt(2, 2, started_at=5000.0, ended_at=5003.0),  # killed; its points are dropped
        attempt(3, 2, started_at=9000.0, ended_at=9020.0),
    ]
    points = [Point(time, step, step, {}) for step, time in ((1, 1004.0), (2, 1008.0), (3, 9005.0))]
    assert on_the_clock(points, attempts, began=1000.0) == [4.0, 8.0, 18.0]
    assert on_the_clock(points[:2], [], began=1001.0) == [3.0, 7.0]
