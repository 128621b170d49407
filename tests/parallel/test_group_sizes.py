import re

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.parallel.group_sizes import require_parts, require_shares


@pytest.mark.parametrize("require", [require_parts, require_shares])
def test_groups_take_heads_that_they_divide_and_the_nearest_size_named_is_taken(require) -> None:
    for number in range(1, 13):
        for num_ranks in range(2, 17):
            if number % num_ranks == 0:
                require(num_ranks, {"num_heads": number})
                continue
            with pytest.raises(ConfigurationError, match=f"model.num_heads={number}") as refused:
                require(num_ranks, {"num_heads": number})
            if nearest := re.search(r"nearest valid: (\d+)\.", str(refused.value)):
                require(int(nearest.group(1)), {"num_heads": number})
            else:
                assert "use strategy=fsdp" in str(refused.value)
