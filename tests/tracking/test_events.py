"""Where the time of a process goes."""

import errno
import itertools
import json
import time

import pytest

from lmtrain.tracking.events import EventLog
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
