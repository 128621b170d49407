from lmtrain.report.runs.scored_data import data_behind, is_of_earlier_data
from lmtrain.tracking.run_log import Point
from tests.report.runs_on_disk import write_data


def test_a_score_is_of_the_data_of_its_attempt(tmp_path):
    write_data(tmp_path, "one", None, "two")
    points = [Point(at + 0.5, 0, 0, {}) for at in range(-1, 3)]
    assert [data_behind(tmp_path, point) for point in points] == [None, "one", None, "two"]
    now = {"fingerprint": "two"}
    assert [is_of_earlier_data(tmp_path, point, now) for point in points] == [False, True, False, False]
    assert not is_of_earlier_data(tmp_path, points[1], {}), "nobody noted the newer data"
