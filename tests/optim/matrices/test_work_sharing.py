"""Work is dealt out evenly and alike; what it does between ranks is tested on real ones in test_sharded.py."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.optim.distributed_muon import deal, share
from lmtrain.optim.sharded import ALONE


@given(costs=st.lists(st.integers(1, 1000), max_size=50), num_ranks=st.integers(1, 9))
def test_no_rank_has_more_than_another_and_one_piece(costs: list[int], num_ranks: int) -> None:
    owners = deal(costs, num_ranks)
    loads = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == r) for r in range(num_ranks)]
    assert len(owners) == len(costs)
    assert max(loads) - min(loads) <= max(costs, default=0)
    assert owners == deal(costs, num_ranks)


def test_matrices_alike_are_dealt_in_turn() -> None:
    assert deal([5, 5, 5, 5], 2) == [0, 1, 0, 1]


def test_alone_there_is_nothing_to_send() -> None:
    tensors = [torch.ones(2, 3), torch.zeros(4, 2)]
    sharing = share(tensors, ALONE)
    gathered = sharing.gather(tensors)
    assert all(gathered[i] is tensor for i, tensor in enumerate(tensors))
    assert sharing.spread(gathered, dtype=torch.float32)[1] is tensors[1]
    assert sharing.publish(gathered, shapes=[tensor.shape for tensor in tensors])[0] is tensors[0]
    assert sharing.part(tensors[0], 0) is tensors[0]
