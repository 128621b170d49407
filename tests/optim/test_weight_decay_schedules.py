import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.optim.weight_decay_schedules import cosine, linear, none


@pytest.mark.parametrize(("schedule", "middle"), [(linear, 0.6), (cosine, 0.6)], ids=["linear", "cosine"])
def test_weight_decay_falls_from_one_to_its_end_and_stays_there(schedule, middle: float) -> None:
    values = [schedule(step, 100, final_fraction=0.2) for step in range(101)]
    assert (values[0], values[50], values[100]) == (1.0, pytest.approx(middle), pytest.approx(0.2))
    assert values == sorted(values, reverse=True)
    assert schedule(10**6, 100, final_fraction=0.2) == pytest.approx(0.2)


def test_the_cosine_is_slower_than_the_line_at_first() -> None:
    assert cosine(10, 100, final_fraction=0.0) > linear(10, 100, final_fraction=0.0)
    assert none() is None


@pytest.mark.parametrize("schedule", [linear, cosine])
def test_an_end_that_is_no_share_is_refused(schedule) -> None:
    with pytest.raises(ConfigurationError, match=r"final_fraction=-1 is not between 0 and 1; nearest valid: 0"):
        schedule(0, 10, final_fraction=-1)
    with pytest.raises(ConfigurationError, match=r"final_fraction=2 is not between 0 and 1; nearest valid: 1"):
        schedule(0, 10, final_fraction=2)
