import pytest

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(("size", "num_ranks", "nearest"), [(8, 12, 6), (8, 1, 1), (0, 4, 1), (16, 8, 8)])
def test_shards_that_do_not_divide_the_ranks_are_refused_with_the_nearest_that_do(size, num_ranks, nearest):
    with pytest.raises(ConfigurationError, match=rf"strategy.shard_size={size} does not.* Did you mean {nearest}\?"):
        ModelSpread(shards_over=size).require_ranks(num_ranks)
    ModelSpread(shards_over=nearest).require_ranks(num_ranks)
