import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.training.objectives.objective import of_rank


def test_a_rank_gets_its_own_state_and_another_number_of_ranks_none() -> None:
    assert of_rank([{"a": 0}, {"a": 1}], 1, 2) == {"a": 1}
    with pytest.raises(ConfigurationError, match="written on 2 ranks, and this run has 1; go on with as many"):
        of_rank([{"a": 0}, {"a": 1}], 0, 1)
