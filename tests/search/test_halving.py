import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.search.halving import promoted, round_ends, step_of_part, whole_runs


def test_rounds_end_at_validations_and_the_last_one_at_the_end() -> None:
    assert round_ends(4, factor=2) == [1, 2, 4]
    assert round_ends(9, factor=3) == [1, 3, 9]
    assert round_ends(6, factor=2) == [3, 6]
    with pytest.raises(ConfigurationError, match=r"num_passes=3; nearest valid: callbacks\.validation\.num_passes=4"):
        round_ends(3, factor=2)


def test_the_step_of_a_part_is_that_of_the_validation_there() -> None:
    num_steps = 22
    parts = [step * 4 // num_steps for step in range(num_steps + 1)]
    validated = [step for step in range(1, num_steps + 1) if parts[step] > parts[step - 1]]
    assert [step_of_part((part, 4), num_steps=num_steps) for part in (1, 2, 3, 4)] == validated
    assert step_of_part(None, num_steps=num_steps) is None


def test_the_better_part_goes_on_and_at_least_one() -> None:
    assert promoted({0: 3.0, 1: 1.0, 2: 2.0, 3: 1.0, 4: 9.0}, factor=2) == [1, 3]
    assert promoted({7: 1.0}, factor=3) == [7]


def test_the_work_of_a_search_is_that_of_its_rounds() -> None:
    assert whole_runs(8, [1, 2, 4], factor=2) == 8 / 4 + 4 / 4 + 2 / 2
    assert whole_runs(1, [1, 2, 4], factor=2) == 1
    assert whole_runs(5, [4], factor=2) == 5
