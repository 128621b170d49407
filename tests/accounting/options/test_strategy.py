import pytest

from lmtrain.accounting.options.strategy import Collective, ModelSpread

STEP = {"num_ranks": 16, "devices_per_node": 8, "gathered": 1600.0, "reduced": 3200.0, "micro_steps": 2}


@pytest.mark.parametrize(("over", "shards"), [(None, 1), ("all ranks", 16), ("node", 8)])
def test_a_copy_is_cut_over_the_ranks_in_reach(over, shards):
    assert ModelSpread(shards_over=over).num_shards(16, 8) == shards


def test_a_node_shards_by_itself_and_averages_its_shards_with_others():
    inside, across = ModelSpread(shards_over="node", reshard_after_forward=False).collectives(**STEP)
    assert inside == Collective(gathered_bytes=7 / 8 * 1600 * 2, reduced_bytes=7 / 8 * 3200, over="node")
    assert across == Collective(reduced_bytes=3200 / 8, over="nodes")


def test_copies_average_gradients_and_one_rank_sends_nothing():
    assert list(ModelSpread().collectives(**STEP)) == [Collective(reduced_bytes=2 * 15 / 16 * 3200)]
    assert list(ModelSpread(shards_over="all ranks").collectives(**STEP | {"num_ranks": 1})) == []
