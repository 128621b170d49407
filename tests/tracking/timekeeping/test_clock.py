import time

import pytest

from lmtrain.tracking.stopwatch import unix_seconds


def test_now_is_the_clock_until_the_clock_jumps(monkeypatch):
    assert unix_seconds() == pytest.approx(time.time(), abs=60)
    before = unix_seconds()
    monkeypatch.setattr(time, "time", lambda: before + 3600)
    assert unix_seconds() == pytest.approx(before, abs=60)


def test_a_moment_of_the_monotonic_clock_has_its_unix_seconds():
    at = time.monotonic()
    assert unix_seconds(at) - unix_seconds(at - 100) == pytest.approx(100)
