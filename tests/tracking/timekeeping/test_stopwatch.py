import itertools
import time

import pytest

from lmtrain.tracking.stopwatch import KINDS, Stopwatch


def test_the_kinds_add_up_to_the_clock(monkeypatch):
    ticks = itertools.count(100)  # a second more at each look
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    watch = Stopwatch()
    for kind in (*KINDS, *reversed(KINDS)):
        watch.switch(kind)
    with watch.spending("checkpoint"), watch.spending("logging"):
        pass
    assert sum(watch.seconds().values()) == next(ticks) - 101
    assert all(seconds > 0 for seconds in watch.seconds().values())


def test_set_up_reaches_back_to_the_command(let_pass):
    watch = Stopwatch(began=time.monotonic() - 100)
    watch.switch("compute")
    assert watch.seconds()["setup"] == pytest.approx(100, abs=0.1)


def test_the_first_steps_work_is_compilation_until_it_ends(let_pass):
    watch = Stopwatch()
    with watch.spending("compile"), watch.spending("compute"):
        let_pass(10)
    assert watch.kind == "setup"
    assert watch.seconds()["compute"] == 0
    assert watch.seconds()["compile"] == pytest.approx(10, abs=0.1)


def test_what_is_booked_anew_is_not_made_up(let_pass):
    watch = Stopwatch(began=time.monotonic() - 10)
    watch.switch("compile")
    before = sum(watch.seconds().values())
    watch.move(4, source="setup", target="compute")
    watch.move(1000, source="setup", target="compute")
    seconds = watch.seconds()
    assert seconds["compute"] == pytest.approx(10, abs=0.1)
    assert seconds["setup"] == 0
    assert sum(seconds.values()) == pytest.approx(before, abs=0.1)


def test_a_body_that_raises_gives_the_time_back():
    watch = Stopwatch()
    with pytest.raises(KeyError), watch.spending("evaluation"):
        raise KeyError
    assert watch.kind == "setup"
