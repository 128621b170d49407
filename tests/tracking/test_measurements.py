from lmtrain.accounting.observed.measured import Measurements
from lmtrain.tracking.machine import read_measurements, write_measurements
from tests.accounting.observed.test_measured import ALL


def test_measurements_come_back(tmp_path):
    cache = tmp_path / "cache"
    assert read_measurements(cache) == Measurements()
    assert write_measurements(cache, ALL) == cache / "doctor.json"
    assert read_measurements(cache) == ALL


def test_a_file_that_is_not_whole_counts_as_none(tmp_path):
    (tmp_path / "doctor.json").write_text("{")
    assert read_measurements(tmp_path) == Measurements()
