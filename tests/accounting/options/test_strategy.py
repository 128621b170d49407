import pytest

from lmtrain.accounting.options.strategy import Collective, ModelSpread, Stream
from lmtrain.errors import ConfigurationError

STEP = {"num_ranks": 16, "gathered": 1600.0, "num_gradients": 800.0, "micro_steps": 2}


@pytest.mark.parametrize(("size", "num_ranks", "nearest"), [(8, 12, 6), (8, 1, 1), (0, 4, 1), (16, 8, 8)])
def test_shards_that_do_not_divide_the_ranks_are_refused_with_the_nearest_that_do(size, num_ranks, nearest):
    with pytest.raises(ConfigurationError, match=rf"strategy.shard_size={size} does not.* nearest valid: {nearest}\."):
        ModelSpread(shards_over=size, word_of_shards="shard_size").require_ranks(num_ranks)
    ModelSpread(shards_over=nearest).require_ranks(num_ranks)


def test_a_node_shards_by_itself_and_averages_its_shards_with_others():
    inside, across = ModelSpread(shards_over=8, reshard_after_forward=False).collectives(**STEP)
    assert inside == Collective(
        group="shards", num_ranks=8, gathered_bytes=7 / 8 * 1600 * 2, reduced_bytes=7 / 8 * 3200
    )
    assert across == Collective(group="copies", num_ranks=2, stride=8, reduced_bytes=3200 / 8)


def test_copies_average_gradients_and_one_rank_sends_nothing():
    assert list(ModelSpread().collectives(**STEP)) == [
        Collective(group="copies", num_ranks=16, reduced_bytes=2 * 15 / 16 * 3200)
    ]
    assert list(ModelSpread(shards_over="all ranks").collectives(**STEP | {"num_ranks": 1})) == []


def test_a_part_of_a_matrix_is_sharded_and_copied_over_the_ranks_that_hold_it() -> None:
    spread = ModelSpread(tensor_ranks=4, shards_over=2)
    stream = Stream(num_tokens=10, num_bytes=400.0, num_layers=3)
    inside, shards, copies = spread.collectives(**STEP, stream=stream)
    assert inside == Collective(
        group="tensor groups", num_ranks=4, gathered_bytes=3 / 4 * (29 * 400 + 240) * STEP["micro_steps"]
    )
    assert shards == Collective(
        group="shards", num_ranks=2, stride=4, gathered_bytes=1600 / 4 / 2 * 4, reduced_bytes=3200 / 4 / 2
    )
    assert copies == Collective(group="copies", num_ranks=2, stride=8, reduced_bytes=3200 / 4 / 2)
