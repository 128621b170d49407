import pytest
import torch
from torch import multiprocessing

from lmtrain.parallel.gradients import sum_over_ranks
from tests.leave import leave


def test_one_process_keeps_its_own_sums():
    assert sum_over_ranks(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]


@pytest.mark.distributed
def test_every_rank_gets_the_sum_of_all(tmp_path):
    multiprocessing.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    assert [torch.load(tmp_path / f"{rank}.pt").tolist() for rank in range(2)] == [[1.0, 20.0]] * 2


def _rank(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(sum_over_ranks(torch.tensor([float(rank), 10.0])), f"{folder}/{rank}.pt")
    leave()
