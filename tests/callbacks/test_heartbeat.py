import os
import threading
from types import SimpleNamespace

from lmtrain.callbacks.heartbeat import Heartbeat
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.tracking.hangs import CONNECTION_LOST, Beat, BeatFile, read_beat
from lmtrain.training.step_metrics import StepMetrics
from lmtrain.training.time_profiler import TimeProfiler
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


def test_a_broken_connection_names_the_silent_rank_of_another_host_and_not_those_that_lost_it_too(
    make_run, monkeypatch, capsys
):
    run = make_run(steps=1)
    heartbeat = Heartbeat(context=run.context)
    monkeypatch.setattr(heartbeat, "_grace_seconds", 0.0)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "node1")
        for rank, activity in ((1, CONNECTION_LOST), (2, "backward")):
            BeatFile(run.context.folder, rank).activity(activity, step=7)
    trainer = SimpleNamespace(world_size=3, global_step=6, global_rank=0)
    heartbeat.setup(trainer, SimpleNamespace(step_metrics=StepMetrics()), "fit")  # pyright: ignore[reportArgumentType]
    heartbeat.on_exception(trainer, None, RuntimeError("Connection closed by peer"))  # pyright: ignore[reportArgumentType]
    told = capsys.readouterr().err
    assert told.startswith("rank 2 on node1 is silent: backward of step 7, for ")
    assert told.count("\n") == 1
    own = read_beat(run.context.folder, 0)
    assert own is not None
    assert own.activity == CONNECTION_LOST
    heartbeat.teardown(trainer, None, "fit")  # pyright: ignore[reportArgumentType]
