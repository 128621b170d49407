"""metrics.jsonl: written, repaired, followed."""

import errno
import json
import math

import pytest

from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import (
    LogOffset,
    Point,
    RunLog,
    logged_points,
    read_after,
    read_points,
)
from lmtrain.tracking.scores import keep_scores, scores_file, scores_since
from tests.full_disk import full_disk
from tests.points import append_point


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
    append_point(log, 2, 20, {"x": 2.0})
    assert [point.step for point in read_points(tmp_path / "metrics.jsonl")] == [1, 2]


def test_truncate_after_keeps_the_steps_up_to_it_and_appends_go_on(tmp_path):
    log = RunLog(tmp_path)
    for step in range(1, 8):
        append_point(log, step, step * 10, {"x": float(step)})

    assert log.truncate_after(4) == 3
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


@pytest.mark.faults
def test_a_disk_that_turns_read_only_ends_the_run_with_a_line(tmp_path):
    log = RunLog(tmp_path)
    with full_disk(number=errno.EROFS), pytest.raises(EnvironmentProblem, match="Read-only"):
        append_point(log, 1, 10, {"x": 1.0})


def test_damaged_line_in_the_middle_is_refused_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"time": 1, "step": 1, "tokens": 1, "metrics": {}}\nnonsense\n{}\n')
    with pytest.raises(DataError, match="line 2"):
        list(read_points(path))


def test_file_that_a_resume_replaced_is_read_from_its_start(tmp_path):
    log = RunLog(tmp_path)
    for step in (1, 2, 3):
        append_point(log, step, step, {"x": 1.0})
    _, place = read_after(log.path, LogOffset())
    log.truncate_after(1)
    for step in (2, 3, 4):
        append_point(log, step, step, {"x": 1.0})
    points, _ = read_after(log.path, place)
    assert [point.step for point in points] == [1, 2, 3, 4]


def test_scores_join_those_of_their_step_and_the_run_s_curves(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    log = RunLog(run.path)
    log.extend([Point(1.0, 7, 70, {"train/loss": 2.0})])
    log.close()
    kept = keep_scores(run.path, step=5, tokens=50, scores={"core/mean": {"score": 0.25, "standard_error": 0.1}})
    assert kept == ({}, None)
    began = scores_since(run.path, 0)["core/mean"]["scored_at"] + 1e-6
    keep_scores(run.path, step=5, tokens=50, scores={"core/copa": {"score": -0.5}})
    assert set(scores_since(run.path, began)) == {"core/copa"}, "another command's score is not this one's"
    assert set(read_json(scores_file(run.path, 5))) == {"core/mean", "core/copa"}
    first, second, _ = read_points(run.path / "metrics.jsonl")
    assert (first.step, second.step, second.tokens, second.metrics) == (7, 5, 50, {"core/mean": 0.25})


def test_a_score_of_another_text_at_another_step_joins_no_curve_of_its_name(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    of = {"a": {"score": 1.0, "sha256": "a"}, "b": {"score": 2.0, "sha256": "b"}}
    kept = [keep_scores(run, step=step, tokens=step, scores={"evaluation/x": of[text]})[0]
            for step, text in ((10, "a"), (20, "b"), (30, "a"), (10, "b"))]  # fmt: skip
    assert kept == [{}, {"evaluation/x": "evaluation/x_2"}, {}, {"evaluation/x": "evaluation/x_2"}]
    curves = [(point.step, *point.metrics) for point in logged_points(run)]
    assert curves == [(10, "evaluation/x"), (20, "evaluation/x_2"), (30, "evaluation/x"), (10, "evaluation/x_2")]
