import errno
import json
import time

import pytest

from lmtrain.tracking import events
from lmtrain.tracking.events import EventLog
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
