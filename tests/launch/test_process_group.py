import os
import socket

import pytest
import torch.distributed as dist
from torch import multiprocessing

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.launch.detect import OuterLauncher
from lmtrain.launch.process_group import broadcast_outcome, join
from tests.leave import leave


def refuse(error):
    raise error


@pytest.mark.parametrize("outer", [None, OuterLauncher("torchrun", 0, 0, 1, 1)])
def test_a_job_of_one_rank_has_no_group_to_join(outer):
    join(outer)
    assert not dist.is_initialized()


def test_a_process_alone_decides_for_itself():
    assert broadcast_outcome(lambda: 7) == 7
    with pytest.raises(ConfigurationError, match="no"):
        broadcast_outcome(lambda: refuse(ConfigurationError("no")))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("meet_in_file", [False, True])
def test_the_first_rank_decides_and_refuses_for_all(tmp_path, meet_in_file):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_rank, args=(port, tmp_path / "store" if meet_in_file else None), nprocs=2)


def _rank(rank, port, store_file):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(0 if store_file else port)}
    outer = OuterLauncher("torchrun", rank, rank, 2, 2, store_file)
    os.environ["NCCL_IB_HCA"] = "mine"
    join(outer, timeout_seconds=30, variables={"NCCL_IB_HCA": "mlx5", "GPU_MAX_HW_QUEUES": 2})
    assert (os.environ["NCCL_IB_HCA"], os.environ["GPU_MAX_HW_QUEUES"]) == ("mine", "2")
    join(outer)  # a second call finds the group as it is
    assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
    assert broadcast_outcome(lambda: {"decided by": rank}) == {"decided by": 0}
    assert broadcast_outcome(lambda: None if rank == 0 else refuse(AssertionError("only rank 0 is asked"))) is None
    for error in (ConfigurationError("resume=x is not there"), EnvironmentProblem("all are damaged")):
        with pytest.raises(type(error), match=str(error)):
            broadcast_outcome(lambda error=error: refuse(error))
    expected, words = (ZeroDivisionError, "division") if rank == 0 else (RuntimeError, "rank 0 failed: ZeroDivision")
    with pytest.raises(expected, match=words):
        broadcast_outcome(lambda: 1 / 0)
    assert broadcast_outcome(lambda: 1) == 1, "a refusal leaves the ranks in step"
    leave()
