"""Where the time of a process goes."""

import errno
import json

from lmtrain.tracking.events import EventLog
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
