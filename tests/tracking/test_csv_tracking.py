import csv

from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Status
from lmtrain.tracking.trackers import CsvTable, CsvTracking
from tests.tracking.followed_runs import follow_attempt


def rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_a_resumed_run_has_one_row_a_step(tmp_path):
    assert follow_attempt(CsvTracking(), tmp_path / "a", {1: 9.0, 2: 8.0, 3: 7.0}).is_complete
    assert follow_attempt(CsvTracking(), tmp_path / "a", {2: 8.5, 3: 7.5}, resumed_from=1).is_complete
    assert rows(tmp_path / "a/metrics.csv") == [
        ["step", "tokens", "time", "train/loss", "validation/bits_per_byte"],
        ["1", "100", "1001.0", "9.0", ""],
        ["2", "200", "1002.5", "8.5", "4.25"],
        ["3", "300", "1003.0", "7.5", ""],
    ]


def test_a_metric_that_comes_late_gets_a_column_and_earlier_rows_stay(tmp_path):
    table = CsvTable(tmp_path / "metrics.csv")
    for step, metrics in enumerate([{"a": 1.0}, {"a": 2.0}, {"b": 3.0}, {"a": float("nan"), "b": 4.0}]):
        table.write([Point(0.0, step, step, metrics)])
    table.close(Status("FINISHED"))
    assert [row[3:] for row in rows(tmp_path / "metrics.csv")] == [
        ["a", "b"],
        ["1.0", ""],
        ["2.0", ""],
        ["", "3.0"],
        ["nan", "4.0"],
    ]
