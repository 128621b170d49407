import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.optim.schedules import range_test


def test_it_rises_from_the_lowest_to_the_highest_by_one_factor():
    curve = [range_test(step, 5, lowest=0.01, highest=100.0) for step in range(5)]
    assert curve == pytest.approx([0.01, 0.1, 1.0, 10.0, 100.0])
    assert range_test(9, 5, lowest=0.01, highest=100.0) == pytest.approx(100.0), "beyond the end"


@pytest.mark.parametrize(("lowest", "highest"), [(0.0, 1.0), (2.0, 1.0), (1.0, 1.0)])
def test_an_empty_range_is_refused(lowest, highest):
    with pytest.raises(ConfigurationError, match=r"schedule\.lowest"):
        range_test(0, 5, lowest=lowest, highest=highest)
