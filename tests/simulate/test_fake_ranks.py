"""A rank among many that do not exist."""

import torch
import torch.distributed as dist

from lmtrain.simulate.rank_step import FirstChunk, fake_ranks


def test_the_group_has_all_ranks_and_is_gone_afterwards():
    with fake_ranks(16384) as mesh:
        assert (dist.get_world_size(), dist.get_rank()) == (16384, 0)
        assert mesh["data_parallel"].size() == 16384
    assert not dist.is_initialized()


def test_the_first_chunk_is_torchs_own_also_where_there_are_fewer_than_ranks():
    tensor = torch.arange(30).view(10, 3)
    for dim, chunks in ((0, 4), (0, 16), (1, 2)):
        with FirstChunk():
            found = torch.chunk(tensor, chunks, dim=dim)
        assert len(found) == chunks
        assert torch.equal(found[0], torch.chunk(tensor, chunks, dim=dim)[0])
