"""Where the time of a process goes."""

import errno
import itertools
import json
import threading
import time

import pytest
import torch
from torch._dynamo.callback import callback_handler

from lmtrain.tracking import events
from lmtrain.tracking import events as module
from lmtrain.tracking.events import FILE, EventLog, compile_time_apart, noted_set_up, set_up_time
from lmtrain.tracking.stopwatch import KINDS, Preemption, Stopwatch
from tests.full_disk import full_disk


def rows(folder, rank=0):
    return [json.loads(line) for line in (folder / "events" / f"rank{rank}.jsonl").read_text().splitlines()]


def test_span_tells_when_it_began_and_how_long_it_took(tmp_path):
    log = EventLog(tmp_path, rank=3)
    before = time.time()
    with log.span("checkpoint", step=7):
        time.sleep(0.02)
    log.close()

    (row,) = rows(tmp_path, rank=3)
    assert row["name"] == "checkpoint"
    assert row["step"] == 7
    assert before - 0.001 <= row["start"] <= time.time()
    assert 0.02 <= row["seconds"] < 1.0


def test_an_attempt_that_comes_to_nothing_leaves_no_event(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "FLUSH_SECONDS", 0.0)
    log = EventLog(tmp_path, rank=0)
    log.mark_attempt(2, num_devices=1)
    log.mark("attention")
    assert rows(tmp_path) == [], "refused, or nothing left to train"
    log.flush()
    assert [row["name"] for row in rows(tmp_path)] == ["attempt", "attention"]


def test_next_attempt_appends_behind_a_torn_line(tmp_path):
    log = EventLog(tmp_path, rank=0)
    log.mark("first")
    log.close()
    with (tmp_path / "events" / "rank0.jsonl").open("a") as file:
        file.write('{"name": "to')
    log = EventLog(tmp_path, rank=0)
    log.mark("second")
    log.close()
    assert [row["name"] for row in rows(tmp_path)] == ["first", "second"]


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


def test_a_pause_is_a_measure_of_those_to_come_without_compilation_slowed_by_other_work_too(tmp_path, let_pass):
    log = EventLog(tmp_path, rank=0, threads=tmp_path / "threads")
    waited(tmp_path / "threads", 0.0)
    with log.pause("validation"):
        let_pass(2.0)
        with log.stopwatch.spending("compile"):
            let_pass(30.0)
        waited(tmp_path / "threads", 16.0)
    assert log.last_pauses["validation"] == pytest.approx(2.0, abs=0.5)
    assert log.paused_seconds == pytest.approx(32.0, abs=0.5)


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


def test_where_the_kernel_tells_nothing_nothing_is_booked(tmp_path):
    watch = Stopwatch()
    Preemption(watch, threads=tmp_path / "none").book()
    assert watch.seconds()["preempted"] == 0.0


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


def test_an_attempt_whose_folder_is_gone_ends_without_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NOTED_EVERY_SECONDS", 0.0)
    (tmp_path / "1").mkdir()
    looks, over = [], threading.Event()

    def is_over():
        looks.append(None)
        if len(looks) == 1:
            (tmp_path / "1").rename(tmp_path / "elsewhere")
        elif len(looks) == 3:
            over.set()
        return over.is_set()

    with noted_set_up(tmp_path / "1", began=0.0, num_devices=1, is_over=is_over):
        assert over.wait(60)
    assert set_up_time(tmp_path / "1") is None
    assert not (tmp_path / "1").exists()
    for content in ('{"started_at": "then"}', '{"started_at": 1.0, "num_devices": 1}', "{"):
        (tmp_path / "elsewhere" / FILE).write_text(content)
        assert set_up_time(tmp_path / "elsewhere") is None


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
