"""Where the time of a process goes."""

import errno
import itertools
import json
import threading
import time

import pytest
import torch
from torch._dynamo.callback import callback_handler

from lmtrain.tracking import events as module
from lmtrain.tracking.events import EventLog, compile_time_apart, noted_set_up, set_up_time
from lmtrain.tracking.stopwatch import KINDS, Preemption, Stopwatch
from tests.full_disk import full_disk


def rows(folder, rank=0):
    return [json.loads(line) for line in (folder / "events" / f"rank{rank}.jsonl").read_text().splitlines()]


def test_events_of_a_full_disk_arrive_later_and_no_disk_ends_a_run(tmp_path):
    log = EventLog(tmp_path, rank=0)
    with full_disk(room_bytes=10):
        log.mark("first")
        log.flush()
    with full_disk(number=errno.EIO):
        log.mark("second")
        log.flush()
    log.mark("third")
    log.close()
    assert [row["name"] for row in rows(tmp_path)] == ["first", "second", "third"]


def waited(folder, seconds):
    (folder / "main").mkdir(parents=True, exist_ok=True)
    (folder / "main" / "schedstat").write_text(f"{10**9} {int(seconds * 1e9)} 7\n")


def test_waiting_for_a_processor_is_taken_from_set_up_and_from_evaluation(tmp_path, let_pass):
    threads = tmp_path / "threads"
    waited(threads, 2.5)
    log = EventLog(tmp_path, rank=0, began=time.monotonic() - 10, waited_before={"main": 0.5}, threads=threads)
    with log.pause("validation"):  # begins with a booking
        log.stopwatch._seconds["evaluation"] += 8.0
        waited(threads, 5.5)
    seconds = log.stopwatch.seconds()
    assert seconds["setup"] == pytest.approx(8.0, abs=0.1)
    assert seconds["evaluation"] == pytest.approx(5.0, abs=0.1)
    assert seconds["preempted"] == pytest.approx(5.0, abs=0.1)
    assert sum(seconds.values()) == pytest.approx(18.0, abs=0.1)


@pytest.mark.parametrize(("kind", "while_compiling"), [("evaluation", "compile"), ("compute", "compute")])
def test_an_evaluation_alone_is_interrupted_by_compilation(kind, while_compiling):
    watch, seen = Stopwatch(), []

    def backend(graph, _):
        seen.append(watch.kind)
        return graph.forward

    with compile_time_apart(watch), watch.spending(kind):
        twice = torch.compile(lambda x: 2 * x, backend=backend)
        assert twice(torch.ones(2)).tolist() == twice(torch.ones(2)).tolist() == [2.0, 2.0]
        assert watch.kind == kind, "a recompiled step is a step: its end would be another kind's"
    assert seen == [while_compiling], "compiled once"
    assert not callback_handler.start_callbacks
    assert not callback_handler.end_callbacks


def write(folder, **waited):
    for name, seconds in waited.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "schedstat").write_text(f"{10**9} {int(seconds * 1e9)} 7\n")


def test_waiting_is_taken_from_all_kinds_alike_and_the_sum_stays(let_pass, tmp_path):
    write(tmp_path, main=1.0, worker=5.0)
    watch = Stopwatch(began=time.monotonic() - 10)
    preemption = Preemption(watch, threads=tmp_path)
    watch.switch("compute")
    watch._seconds["compute"] += 8.0
    watch._seconds["logging"] += 2.0
    write(tmp_path, main=2.0, worker=10.0)
    before = watch.seconds()
    preemption.book()
    after = watch.seconds()
    assert after["preempted"] == pytest.approx(5.0, rel=1e-3), "of the thread that lost most"
    assert after["compute"] == pytest.approx(4.0, rel=1e-2)
    assert after["logging"] == pytest.approx(1.0, rel=1e-2)
    assert after["setup"] == pytest.approx(before["setup"], abs=0.01), "what was before does not count"
    assert sum(after.values()) == pytest.approx(sum(before.values()), abs=0.01)


def test_a_set_up_is_seen_until_it_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NOTED_EVERY_SECONDS", 0.0)
    seen, over = [], threading.Event()

    def is_over():
        seen.append(set_up_time(tmp_path))
        if len(seen) == 3:
            over.set()
        return over.is_set()

    began = time.monotonic() - 7.0
    with noted_set_up(tmp_path, began=began, num_devices=2, is_over=is_over):
        assert over.wait(60)
    assert seen[0].seen_at < seen[1].seen_at < seen[2].seen_at
    assert len({(each.started_at, each.num_devices) for each in seen}) == 1
    assert 7.0 <= seen[0].seen_at - seen[0].started_at < 300.0
    assert set_up_time(tmp_path) == seen[2], "nothing is noted after the end"


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
