import json

import pytest

from lmtrain.accounting.observed.time_accounts import TimeBalance
from lmtrain.report.runs.speeds import logged_speed, speed_words, speeds
from lmtrain.tracking.run_log import Point


def test_each_speed_is_over_its_own_seconds_and_an_unknown_one_is_left_out():
    time = TimeBalance(seconds={"setup": 90.0, "compute": 10.0}, num_attempts=1)
    found = speeds(1000, time, of_steps=50.0)
    told = "100 while computing, 50 over whole steps, 10 over the clock"
    assert speed_words(found, "{:g}".format, time=time) == told
    assert (
        speed_words(speeds(1000, time, of_steps=None), "{:.0f}".format, time=time)
        == "100 while computing, 10 over the clock"
    )
    few = {"computing": 126.0, "steps": 130.0, "clock": 1.0}
    assert speed_words(few, "{:g}".format, time=time) == "130 over whole steps, 1 over the clock"
    writes = TimeBalance(seconds={"generation": 30.0}, num_attempts=1)
    assert speed_words({"steps": 5.0}, "{:g}".format, time=writes) == "5 over whole steps but for generation"
    assert speed_words(speeds(0, TimeBalance(), of_steps=None), "{:g}".format, time=time) == ""


def test_a_fork_s_speed_begins_at_its_step(tmp_path):
    timed = {"speed/tokens_per_second": 100.0, "speed/timed_seconds": 10.0}
    points = [Point(0.0, 21, 2100, timed)]
    (tmp_path / "fork.json").write_text(json.dumps({"step": 10}))
    found = logged_speed(tmp_path, points, [])
    assert found is not None
    assert (found.seconds, found.tokens_per_second) == (10.0, 100.0)
    assert found.loss_share == pytest.approx(1.0), "eleven steps, the first one untimed"
    assert logged_speed(tmp_path, [], []) is None
