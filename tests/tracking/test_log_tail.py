from pathlib import Path

import pytest

from lmtrain.tracking import run_log as log_tail
from lmtrain.tracking.run_log import LogOffset, Point, RunLog, format_point, newest_with, read_after
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


@pytest.mark.parametrize("read_bytes", [7, 100, 1 << 20])
def test_the_newest_point_with_a_metric_is_found_however_far_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(log_tail, "READ_BYTES", read_bytes)
    log = tmp_path / "metrics.jsonl"
    points = [
        Point(float(n), n, n, {"validation/a": 1.0 + n} if n in (0, 3) else {"train/loss": 0.5}) for n in range(9)
    ]
    log.write_text("".join(map(format_point, points)) + '{"time": 9.0, "metrics": {"validation/a"')
    assert newest_with(log, "validation/a") == points[3]
    assert newest_with(log, "validation") is None
    monkeypatch.setattr(log_tail, "LONGEST_LINE_BYTES", 200)
    log.write_text(format_point(points[0]) + 1000 * " ")
    assert newest_with(log, "validation/a") == (points[0] if read_bytes > 1000 else None)
