import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.report.find_runs import find_runs
from tests.report.compared_folder import write


def test_a_run_a_folder_and_a_sweep_name_runs_and_each_counts_once(tmp_path):
    one, other = write(tmp_path / "a", sweep="sweep-1"), write(tmp_path / "b", sweep="sweep-1")
    third = write(tmp_path / "deep/c")
    assert find_runs([one]) == [one]
    assert find_runs([tmp_path]) == [one, other, third]
    assert find_runs([tmp_path / "sweep-1"]) == [one, other]
    assert find_runs([other, tmp_path]) == [other, one, third]


def test_what_holds_no_run_is_refused_with_the_nearest_name(tmp_path):
    write(tmp_path / "warm_adamw")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"holds no run.*Did you mean 'warm_adamw'"):
        find_runs([tmp_path / "warm_adam"])
    with pytest.raises(ConfigurationError, match="empty holds no run; give a run's folder, as runs/NAME"):
        find_runs([tmp_path / "empty"])
    with pytest.raises(ConfigurationError, match="holds no run"):
        find_runs([tmp_path / "sweep-2"])
