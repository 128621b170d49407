from lmtrain.tracking.log_tail import LogOffset, read_after
from lmtrain.tracking.run_log import RunLog
from tests.points import append_point


def steps(batch):
    return [point.step for point in batch.points]


def test_reader_gets_each_point_once(tmp_path):
    log = RunLog(tmp_path)
    append_point(log, 1, 1, {"x": 1.0})
    first = read_after(log.path, LogOffset())
    append_point(log, 2, 2, {"x": 2.0})
    append_point(log, 3, 3, {"x": 3.0})
    second = read_after(log.path, first.next)
    third = read_after(log.path, second.next)
    assert (steps(first), steps(second), steps(third)) == ([1], [2, 3], [])


def test_half_written_line_waits_for_its_end(tmp_path):
    log = RunLog(tmp_path)
    append_point(log, 1, 1, {"x": 1.0})
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole[:20])
    batch = read_after(log.path, LogOffset())
    assert steps(batch) == [1]
    assert batch.next.offset == len(whole)


def test_file_that_a_resume_replaced_is_read_from_its_start(tmp_path):
    log = RunLog(tmp_path)
    for step in (1, 2, 3):
        append_point(log, step, step, {"x": 1.0})
    place = read_after(log.path, LogOffset()).next
    log.truncate_after(1)
    for step in (2, 3, 4):
        append_point(log, step, step, {"x": 1.0})
    assert steps(read_after(log.path, place)) == [1, 2, 3, 4]


def test_long_log_is_read_in_parts_that_join(tmp_path):
    log = RunLog(tmp_path)
    for step in range(50):
        append_point(log, step, step, {"x": 1.0})
    place, seen = LogOffset(), []
    while (batch := read_after(log.path, place, read_bytes=300)).points:
        seen += steps(batch)
        place = batch.next
    assert seen == list(range(50))


def test_log_that_does_not_exist_yet_is_empty(tmp_path):
    assert read_after(tmp_path / "metrics.jsonl", LogOffset()).points == []
