import os
import threading

import pytest

from lmtrain.callbacks.heartbeat import Heartbeat
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.heartbeat import Beat, read_beat
from lmtrain.training.measuring.time_profiler import TimeProfiler
from tests.callbacks.tiny_run import TinyModel


def test_a_run_s_beats_name_its_step_and_activity_and_its_thread_ends_with_it(make_run):
    run = make_run(steps=3)
    seen: list[Beat | None] = []

    class Looks(TinyModel):
        def features(self, tokens, documents=None):
            seen.append(read_beat(run.context.folder, 0))
            return super().features(tokens, documents)

    watched = (Heartbeat(context=run.context), TokenBudget(context=run.context))
    others = set(threading.enumerate())
    run.fit(*watched, module=run.module(Looks()), profiler=TimeProfiler(run.context.events.stopwatch))
    beats = [(one.step, one.activity, one.process) for one in seen if one]
    assert beats == [(step, "forward", os.getpid()) for step in (1, 2, 3)]
    assert "heartbeat" not in [thread.name for thread in set(threading.enumerate()) - others]
    last = read_beat(run.context.folder, 0)
    assert last is not None
    assert (last.step, last.micro_steps) == (3, 3)


def test_a_report_sooner_than_two_beats_is_refused(make_run):
    with pytest.raises(ConfigurationError, match=r"report_after_seconds=3 .* nearest valid: 10"):
        Heartbeat(report_after_seconds=3, context=make_run(steps=1).context)
