"""A rank among many that do not exist."""

import torch.distributed as dist

from lmtrain.simulate.rank_step import fake_ranks


def test_the_group_has_all_ranks_and_is_gone_afterwards():
    with fake_ranks(16384) as mesh:
        assert (dist.get_world_size(), dist.get_rank()) == (16384, 0)
        assert mesh["data_parallel"].size() == 16384
    assert not dist.is_initialized()
