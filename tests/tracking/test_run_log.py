"""metrics.jsonl: written, repaired, followed."""

import errno
import json
import math
from pathlib import Path

import pytest

from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.tracking import run_log as log_tail
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import (
    LogOffset,
    Point,
    RunLog,
    format_point,
    logged_points,
    newest_with,
    read_after,
    read_points,
)
from lmtrain.tracking.scores import all_scores, keep_scores, scores_file, scores_since
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


def test_scores_join_those_of_their_step_and_the_run_s_curves(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    log = RunLog(run.path)
    log.extend([Point(1.0, 7, 70, {"train/loss": 2.0})])
    log.close()
    kept = keep_scores(run.path, step=5, tokens=50, scores={"core/mean": {"score": 0.25, "standard_error": 0.1}})
    assert (kept.names, kept.problem) == ({}, None)
    began = scores_since(run.path, 0)["core/mean"]["scored_at"] + 1e-6
    keep_scores(run.path, step=5, tokens=50, scores={"core/copa": {"score": -0.5}})
    assert set(scores_since(run.path, began)) == {"core/copa"}, "another command's score is not this one's"
    assert set(read_json(scores_file(run.path, 5))) == {"core/mean", "core/copa"}
    first, second, _ = read_points(run.path / "metrics.jsonl")
    assert (first.step, second.step, second.tokens, second.metrics) == (7, 5, 50, {"core/mean": 0.25})


def test_a_score_of_another_text_or_setting_does_not_replace_one_of_its_name(tmp_path):
    def keep(score, **of_what):
        kept = keep_scores(tmp_path, step=5, tokens=50, scores={"evaluation/x": {"score": score, **of_what}})
        return kept.names.get("evaluation/x", "evaluation/x")

    first, short = {"sha256": "aa", "context_tokens": 256}, {"sha256": "aa", "context_tokens": 32}
    names = ["evaluation/x", "evaluation/x_2", "evaluation/x_3", "evaluation/x", "evaluation/x_2"]
    asked = [first, short, {"sha256": "bb", "context_tokens": 256}, first, short]
    assert [keep(number / 8, **one) for number, one in enumerate(asked)] == names
    file = all_scores(tmp_path)[5]
    assert {name: one["score"] for name, one in file.items()} == dict(zip(names[:3], [0.375, 0.5, 0.25], strict=True))


def test_a_score_of_another_text_at_another_step_joins_no_curve_of_its_name(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    of = {"a": {"score": 1.0, "sha256": "a"}, "b": {"score": 2.0, "sha256": "b"}}
    kept = [keep_scores(run, step=step, tokens=step, scores={"evaluation/x": of[text]}).names
            for step, text in ((10, "a"), (20, "b"), (30, "a"), (10, "b"))]  # fmt: skip
    assert kept == [{}, {"evaluation/x": "evaluation/x_2"}, {}, {"evaluation/x": "evaluation/x_2"}]
    curves = [(point.step, *point.metrics) for point in logged_points(run)]
    assert curves == [(10, "evaluation/x"), (20, "evaluation/x_2"), (30, "evaluation/x"), (10, "evaluation/x_2")]
