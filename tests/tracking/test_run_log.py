import errno
import json
import math

import pytest

from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.tracking.run_log import RunLog, read_points
from tests.full_disk import full_disk
from tests.points import append_point


def test_point_reads_back_as_it_was_appended(tmp_path):
    log = RunLog(tmp_path)
    append_point(log, 1, 512, {"train/loss": 2.5}, time=1000.25)
    append_point(log, 2, 1024, {"train/loss": 2.25, "train/lr": 1e-3}, time=1001.5)

    first, second = read_points(tmp_path / "metrics.jsonl")
    assert (first.time, first.step, first.tokens, first.metrics) == (1000.25, 1, 512, {"train/loss": 2.5})
    assert second.metrics == {"train/loss": 2.25, "train/lr": 1e-3}


def test_value_that_is_not_finite_stays_valid_json_and_reads_back(tmp_path):
    append_point(RunLog(tmp_path), 1, 0, {"a": math.nan, "b": math.inf, "c": -math.inf})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert row["metrics"] == {"a": "nan", "b": "inf", "c": "-inf"}
    metrics = next(read_points(tmp_path / "metrics.jsonl")).metrics
    assert math.isnan(metrics["a"])
    assert (metrics["b"], metrics["c"]) == (math.inf, -math.inf)


@pytest.mark.parametrize("torn", [b'{"time": 1.0, "st', b"\0" * 4096, b"\0" * 100 + b"\n", b"\n"])
def test_torn_end_is_dropped_at_open_and_the_log_goes_on(tmp_path, torn):
    log = RunLog(tmp_path)
    append_point(log, 1, 10, {"x": 1.0})
    log.close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)

    log = RunLog(tmp_path)
    assert log.last_step() == 1
    append_point(log, 2, 20, {"x": 2.0})
    assert [point.step for point in read_points(tmp_path / "metrics.jsonl")] == [1, 2]


def test_truncate_after_keeps_the_steps_up_to_it_and_appends_go_on(tmp_path):
    log = RunLog(tmp_path)
    for step in range(1, 8):
        append_point(log, step, step * 10, {"x": float(step)})

    assert log.truncate_after(4) == 3
    assert log.last_step() == 4
    append_point(log, 5, 50, {"x": -5.0})
    log.close()

    points = list(read_points(tmp_path / "metrics.jsonl"))
    assert [point.step for point in points] == [1, 2, 3, 4, 5]
    assert points[-1].metrics == {"x": -5.0}
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_points_of_a_disk_that_is_full_for_a_moment_arrive_once_there_is_room(tmp_path, caplog):
    log = RunLog(tmp_path)
    append_point(log, 1, 10, {"x": 1.0})
    with full_disk(room_bytes=10):
        append_point(log, 2, 20, {"x": 2.0})
        append_point(log, 3, 30, {"x": 3.0})
        assert [point.step for point in read_points(tmp_path / "metrics.jsonl")] == [1]
    append_point(log, 4, 40, {"x": 4.0})
    log.close()

    assert [point.step for point in read_points(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    told = [record.message for record in caplog.records]
    assert len(told) == 2, "once when it began, once when it was over"
    assert "free some space" in told[0]


def test_close_on_a_disk_that_stays_full_says_that_points_are_lost(tmp_path):
    log = RunLog(tmp_path)
    with full_disk():
        append_point(log, 1, 10, {"x": 1.0})
        with pytest.raises(EnvironmentProblem, match="free some space"):
            log.close()
        log.close()


@pytest.mark.faults
def test_a_disk_that_turns_read_only_ends_the_run_with_a_line(tmp_path):
    log = RunLog(tmp_path)
    with full_disk(number=errno.EROFS), pytest.raises(EnvironmentProblem, match="mounted read-only"):
        append_point(log, 1, 10, {"x": 1.0})


def test_damaged_line_in_the_middle_is_refused_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"time": 1, "step": 1, "tokens": 1, "metrics": {}}\nnonsense\n{}\n')
    with pytest.raises(DataError, match="line 2"):
        list(read_points(path))
